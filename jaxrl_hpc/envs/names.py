"""Names of the environments by family. No JAX, so that `jaxrl-hpc list envs` responds at once."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

CLASSIC = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
# without MNISTBandit, which downloads a data set when it is made
BSUITE = ("Catch", "DeepSea", "MemoryChain", "UmbrellaChain", "DiscountingChain", "SimpleBandit")
MISC = (
    *("FourRooms", "MetaMaze", "PointRobot", "BernoulliBandit", "GaussianBandit"),
    *("Reacher", "Swimmer", "Pong", "FrozenLake"),
)
EXABOOSTER = ("ExaBooster-v0", "ExaBoosterContinuous-v0")
Probe = Literal[
    "ProbeValue", "ProbeObservation", "ProbeCredit", "ProbeAction", "ProbeBoth", "ProbeTruncation",
    "ProbeValueContinuous", "ProbeObservationContinuous", "ProbeCreditContinuous", "ProbeActionContinuous",
    "ProbeBothContinuous", "ProbeTruncationContinuous",
]  # fmt: skip
Lander = Literal["LunarLander-v3", "LunarLanderContinuous-v3"]
Robot = Literal[
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5",
]  # fmt: skip
Game = Literal["BeamRider-Atari", "Breakout-Atari", "Qbert-Atari", "SpaceInvaders-Atari"]


class Family(NamedTuple):
    """Environments that one module makes."""

    title: str
    names: tuple[str, ...]
    module: str  # below jaxrl_hpc.envs
    config: str = "Config"
    make: str = "make"
    note: str = ""  # instead of listing its single name


def _ending(suffix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}-{suffix}" for name in names)


FAMILIES = (
    Family("classic control", CLASSIC, "gymnax"),
    Family("MinAtar", _ending("MinAtar", MINATAR), "gymnax"),
    Family("bsuite", _ending("bsuite", BSUITE), "gymnax"),
    Family("gymnax, others", _ending("misc", MISC), "gymnax"),
    Family("Fermilab Booster", EXABOOSTER, "exabooster", "ExaBoosterConfig", "make_env"),
    Family("probes", get_args(Probe), "probes"),
    Family("LunarLander", get_args(Lander), "external.envpool_env", "LanderConfig", "make_lander"),
    Family("MuJoCo", get_args(Robot), "external.envpool_env", "RobotConfig", "make_robot"),
    Family("Atari", get_args(Game), "external.envpool_env", "AtariConfig", "make_atari"),
    Family("annealing a film", ("CahnHilliard-v0",), "cahn_hilliard"),
    Family("Gymnasium", ("gymnasium",), "external.gymnasium_env", note="any environment, by env.id"),
    Family("Jumanji", ("jumanji",), "jumanji", note="any environment, by env.id (pip install jumanji)"),
    Family("recorded data", ("dataset",), "recorded", note="no environment, only a file of transitions"),
    Family("MPI program", ("mpi_program",), "external.mpi_program", note="a simulator over MPI ranks"),
)
GYMNAX = tuple(name for family in FAMILIES if family.module == "gymnax" for name in family.names)
