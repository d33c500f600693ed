"""The workloads of `bench train`, defined once for all libraries.

CartPole-v1 (TD3: Pendulum-v1), MLP 64 x 64, batch 128, replay of 65,536, Adam, soft target updates. All
libraries get the same sizes, activations and numbers of updates; we match what the peer computes: double DQN
against rejax, plain DQN against the others. Evaluation is left out. Breakout (Atari) has the network of its
config, shared by policy and value, and four stacked frames; the loss of a life ends an episode.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FOREVER = 2**31 - 1  # budget: schedules must not end while the clock runs


class Work(NamedTuple):
    """One workload. Peers get it as JSON."""

    algorithm: str  # dqn, ppo, td3
    env: str
    num_envs: int
    unroll_length: int = 1
    epochs: int = 1
    minibatches: int = 1
    batch_size: int = 128
    capacity: int = 65_536
    width: int = 64
    double: bool = True  # dqn
    seeds: int = 1
    learning_rate: float = 5e-4
    replay: str = "uniform"  # ours only
    threads: int = 0  # ours only
    seed: int = 0
    budget: int = FOREVER  # environment steps of a seed
    exploration_fraction: float = 0.2  # dqn: part of the budget over which epsilon falls
    filters: tuple[int, ...] = ()  # of convolutions before one layer of `width`
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    clip: float = 0.2  # ppo
    dtype: str = "float32"  # ours only
    warm: bool = True  # start with a replay that is full enough to learn from


def our_config(work: Work) -> dict[str, Any]:
    """The workload as one of our configs."""
    config: dict[str, Any] = {
        "agent": {
            "name": work.algorithm,
            "network": {
                "hidden": [work.width] * 2,
                "activation": "tanh" if work.algorithm == "ppo" else "relu",
            },
            "learning_rate": work.learning_rate,
        },
        "env": {"name": work.env},
        "workflow": {"name": "fused", "num_envs": work.num_envs, "unroll_length": work.unroll_length},
        "run": {
            "total_env_steps": work.budget,
            "seeds": work.seeds,
            "seed": work.seed,
            "threads": work.threads,
        },
    }
    agent = config["agent"]
    if work.filters:
        convolutions = {name: list(getattr(work, name)) for name in ("filters", "kernel", "stride")}
        agent["network"] = {**convolutions, "hidden": [work.width], "dtype": work.dtype}
        agent |= {"epochs": work.epochs, "minibatches": work.minibatches, "clip": work.clip}
        agent |= {"share_torso": True, "acting_values": True}  # as the peers do
        config["run"]["log_every"] = work.num_envs * work.unroll_length  # a chunk is an iteration, as theirs
        return config
    if work.algorithm == "ppo":  # the peers clip values too
        agent |= {"epochs": work.epochs, "minibatches": work.minibatches, "clip_value": True}
        return config
    agent["batch_size"] = work.batch_size
    if work.algorithm == "dqn":
        agent |= {
            "target_every": 0,
            "double": work.double,
            "epsilon_fraction": work.exploration_fraction,
            "huber_delta": 1e6,  # the squared error, which the JAX peers learn by
        }
    if work.algorithm == "td3":
        agent["actor_learning_rate"] = work.learning_rate
    least = work.capacity * 7 // 8 if work.warm else 1_000
    config["replay"] = {"name": work.replay, "capacity": work.capacity, "min_size": least}
    return config


class Case(NamedTuple):
    """One line of the table."""

    name: str
    title: str
    work: Work
    peers: tuple[str, ...] = ()
    goal: float | None = None  # how many times the rate of the fastest peer ours should be
    pinned: bool = False  # also measured with each library held to one core
    pinned_goal: float | None = None  # how many times our CPU time per update the smallest of the peers' is
    learning: int = 0  # environment steps after which all sides are compared by their return


def dqn(num_envs: int, **other: Any) -> Work:
    return Work("dqn", "CartPole-v1", num_envs, **other)


def ppo(num_envs: int, **other: Any) -> Work:
    settings = {"unroll_length": 128, "epochs": 4, "minibatches": 4, "learning_rate": 2.5e-4, **other}
    return Work("ppo", "CartPole-v1", num_envs, **settings)


def atari(**other: Any) -> Work:
    """configs/atari_breakout_ppo.yaml."""
    settings: dict[str, Any] = {
        "filters": (16, 32),
        "kernel": (8, 4),
        "stride": (4, 2),
        "width": 256,
        "unroll_length": 128,
        "epochs": 3,
        "minibatches": 8,
        "clip": 0.1,
        **other,
    }
    return Work("ppo", "Breakout-Atari", 8, **settings)


PLAIN = ("purejaxrl", "sbx", "stable_baselines3")  # DQN without the double estimator

CASES = (
    Case("dqn_1", "DQN, 1 environment : 1 update", dqn(1, double=False), PLAIN, 1.5),
    Case(
        "dqn_8",
        "DQN, 8 environments : 1 update",
        dqn(8, double=False),
        PLAIN,
        1.6,
        pinned=True,
        pinned_goal=1.25,
        learning=160_000,
    ),
    Case("double_dqn_1", "Double DQN, 1 environment : 1 update", dqn(1), ("rejax",)),
    Case("double_dqn_8", "Double DQN, 8 environments : 1 update", dqn(8), ("rejax",), learning=160_000),
    Case(
        "dqn_8_seeds_16",
        "DQN, 8 : 1, 16 seeds in all",
        dqn(8, double=False, seeds=16),
        ("purejaxrl",),
        3.0,
    ),
    Case(
        "ppo_16",
        "PPO, 16 environments × 128 steps",
        ppo(16),
        ("purejaxrl", "rejax", "sbx", "stable_baselines3"),
        2.0,
        pinned=True,
        pinned_goal=1.5,
        learning=200_000,
    ),
    Case(
        "ppo_64",
        "PPO, 64 environments × 128 steps",
        ppo(64),
        ("purejaxrl", "rejax"),
        2.0,
        pinned=True,
        pinned_goal=1.5,
    ),
    Case(
        "td3",
        "TD3 on Pendulum, 1 : 1",
        Work("td3", "Pendulum-v1", 1, learning_rate=1e-3),
        ("rejax", "sbx", "stable_baselines3"),
        4.5,
        learning=15_000,
    ),
)

# apart from the others, because it takes minutes
ATARI_CASES = (
    Case(
        "atari_ppo",
        "PPO on Breakout (Atari), 8 environments × 128 steps",
        atari(),
        ("stable_baselines3",),
        1.5,
        pinned=True,
        pinned_goal=1.5,
    ),
    Case(
        "atari_ppo_bfloat16",
        "the same, ours with products of bfloat16",
        atari(dtype="bfloat16"),
        ("stable_baselines3",),
        pinned=True,
    ),
)

# the replay's size must not matter: (slots, measure rejax there too)
SLOTS = ((4_096, True), (65_536, True), (262_144, True), (2**20, False))
SLOTS_GOAL = 1.3  # largest slowdown from the first to the last
SLOT_CASES = tuple(
    Case(f"slots_{slots}", f"{slots:,} slots", dqn(8, capacity=slots), ("rejax",) if peer else ())
    for slots, peer in SLOTS
)

# cost of prioritised replay: the same workload with uniform and with prioritised replay
PRIORITY_GOAL = 1.2  # largest CPU time of an update, relative to uniform replay
PRIORITY_CASES = tuple(
    Case(f"{kind}_{slots}", f"{kind} replay, {slots:,} slots", dqn(8, capacity=slots, replay=kind))
    for slots in (65_536, 2**20)
    for kind in ("uniform", "prioritised")
)

WIDTHS = (64, 128, 256, 512, 1024)


def width_case(width: int, threads: int) -> Case:
    """A single run of DQN 8 : 1 with wider layers and a given number of XLA threads."""
    work = dqn(8, capacity=8_192, width=width, threads=threads)
    return Case(f"width_{width}_threads_{threads}", f"width {width}", work)
