"""`jaxrl-hpc train` as a script: python scripts/train.py CONFIG [key=value …] [--run-dir DIR] [--resume]"""

import sys

from jaxrl_hpc.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
