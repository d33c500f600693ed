"""One peer on one workload, in a separate process.

    PYTHON jaxrl_hpc/bench/peers/worker.py LIBRARY WORK [PATH]

PYTHON is that of the environment in which the peers are installed (`make bench`). WORK is the JSON of
`bench.cases.Work`, PATH the checkout of a peer that is not a package.
"""

from __future__ import annotations

import importlib
import json
import sys

from serve import serve  # beside this file; nothing of jaxrl_hpc is installed here

ADAPTERS = {
    "rejax": "run_rejax",
    "purejaxrl": "run_purejaxrl",
    "sbx": "run_baselines",
    "stable_baselines3": "run_baselines",
}

if __name__ == "__main__":
    library, work, *path = sys.argv[1:]
    adapter = importlib.import_module(ADAPTERS[library])
    serve(lambda: adapter.make(library, json.loads(work), *path))
