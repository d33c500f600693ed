"""`jaxrl-hpc sweep` as a script: python scripts/sweep.py plan|run|submit|status|collect FILE [options]"""

import sys

from jaxrl_hpc.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["sweep", *sys.argv[1:]]))
