"""Print the JSON schema of configs. Editors with a YAML language server use it to complete and check configs.

examples:
  jaxrl-hpc schema > configs/schema.json
  jaxrl-hpc schema --sweeps > configs/sweeps/schema.json
"""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sweeps", action="store_true", help="print the schema of sweep files instead")


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.config import json_schema
    from jaxrl_hpc.sweeps.spec import sweep_schema

    print(json.dumps(sweep_schema() if args.sweeps else json_schema(), indent=2))
    return 0
