"""Libraries that gymnax imports and nothing here needs must not slow down every start."""

import subprocess
import sys


def test_plotting_is_not_loaded_until_it_is_used():
    code = """
import sys
from jaxrl_hpc import config
from jaxrl_hpc.runtime.build import build
build(config.load("cartpole_dqn"))
assert "gymnax" in sys.modules
loaded = {"matplotlib", "seaborn", "pandas", "scipy.stats", "gymnasium"} & set(sys.modules)
assert not loaded, loaded
from gymnax.environments.misc import pong
assert len(pong.sns.color_palette("cubehelix", 3)) == 3 and callable(pong.plt.subplots)
from gymnax.environments import spaces
assert spaces.gymnax_space_to_gym_space(spaces.Discrete(3)) == sys.modules["gymnasium.spaces"].Discrete(3)
assert pong.colors.ListedColormap is sys.modules["matplotlib.colors"].ListedColormap
"""
    subprocess.run([sys.executable, "-c", code], check=True)
