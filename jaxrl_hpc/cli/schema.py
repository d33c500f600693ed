"""Print the JSON schema of configs. Editors with a YAML language server complete and check by it.

example:
  jaxrl-hpc schema > configs/schema.json
"""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.config import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0
