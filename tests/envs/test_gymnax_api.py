"""Plotting libraries that gymnax imports must not slow down every start."""

import subprocess
import sys


def test_seaborn_is_not_loaded_until_it_is_used():
    code = """
import sys
from jaxrl_hpc import config
from jaxrl_hpc.runtime.build import build
build(config.load("cartpole_dqn"))
assert "gymnax" in sys.modules and "scipy.stats" not in sys.modules, "seaborn was loaded"
import seaborn
assert len(seaborn.color_palette("cubehelix", 3)) == 3
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
