"""Learning results: train shipped configs over several seeds and write one page per study.

    python scripts/studies/learning.py cartpole            train what is missing, then write the page
    python scripts/studies/learning.py cartpole --page     only write the page from finished runs
    python scripts/studies/learning.py --list

Runs go to runs/studies/<study>/<entry>; finished ones are skipped, broken ones resumed. The page
docs/results/<study>.md states for every entry its target, the score of the final
evaluation over seeds with its interval (ops/statistics.py), and the command and commit that made it.
Entries are compared with their controls (comparison.py); settings were chosen on other seeds (tuning.py).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import comparison  # these are beside this file
import curves
import numpy as np
import readme
import tuning
from command_line import Entry, run
from comparison import Comparison
from kept_rows import kept_rows
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from tuning import Tuning

from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.ops.statistics import score
from jaxrl_hpc.report.data import RunData, load_run, load_runs
from jaxrl_hpc.report.plots import learning_curves
from jaxrl_hpc.report.style import LINE, MUTED, REFERENCE
from jaxrl_hpc.runs.directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / "images"


class Study(NamedTuple):
    title: str
    text: str
    entries: tuple[Entry, ...]
    metric: str = "eval_return"
    episode_steps: int = 0  # where all episodes are equally long: show episodes beside steps
    references: tuple[tuple[str, str, bool], ...] = ()  # label, rule of ExaBooster, bound to its actions?
    comparisons: tuple[Comparison, ...] = ()
    tunings: tuple[Tuning, ...] = ()
    prepare: tuple[
        tuple[str, ...], ...
    ] = ()  # commands that make what entries learn from, as a run or a file
    earlier: str = ""  # runs that were made and seen before those of the page, and how they came out

    @property
    def digits(self) -> int:
        return 3 if self.metric == "eval_improvement" else 1


AS_DYNA_Q = (  # cartpole_dyna_q's settings for cartpole_dqn: what is left is the model and planning
    "agent.batch_size=64", "agent.epsilon_end=0.05", "replay.name=prioritised", "replay.capacity=32_768",
    "replay.min_size=500", "workflow.num_envs=2", "run.total_env_steps=20_000", "run.eval_every=2_000",
)  # fmt: skip
ACROBOT_AS_DYNA_Q = (  # the same for Acrobot
    "agent.batch_size=64", "agent.epsilon_fraction=0.2", "replay.name=prioritised", "replay.capacity=65_536",
    "replay.min_size=1_000", "workflow.num_envs=4", "run.total_env_steps=50_000", "run.eval_every=5_000",
)  # fmt: skip
EXABOOSTER_AS_DYNA_Q = (  # the same for ExaBooster
    "agent.batch_size=256", "replay.name=prioritised", "replay.min_size=5_000", "workflow.num_envs=32",
    "workflow.updates_per_iteration=2", "run.total_env_steps=200_000", "run.eval_every=32_000",
    "run.log_every=8_000",
)  # fmt: skip
TARGET_RATES = {"agent.target_rate": (0.005, 0.02)}
CRITIC_RATES = {"agent.learning_rate": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)}
CRITIC_RATE = "agent.learning_rate=2e-3"  # the best of them for both
RECURRENT_CARTPOLE = (
    "env.name=CartPole-v1", "env.params={}", "agent.huber_delta=100.0", "run.total_env_steps=50_000",
    "run.eval_every=5_000",
)  # fmt: skip
RECURRENT_CHAIN = ("run.total_env_steps=20_000", "run.eval_every=1_000")
A2C_BEFORE = (
    "agent.gamma=0.95", "agent.gae_lambda=0.95", "workflow.num_envs=16", "workflow.unroll_length=16",
    "agent.learning_rate=1e-3",
)  # fmt: skip
EXABOOSTER_REFERENCES = (
    ("PI, retuned", "pi_tuned", False),
    ("drift known", "with_drift", False),
    ("drift and phase known, thirty actions", "with_phase", True),
)
TWO, FIVE = "workflow.updates_per_iteration=2", "workflow.updates_per_iteration=5"
UNIFORM, PRIORITISED = "replay.name=uniform", "replay.name=prioritised"

MINATAR_DQN = (
    "run.total_env_steps=2_000_000", "agent.batch_size=32", "workflow.updates_per_iteration=1",
    "run.eval_every=200_000",
)  # fmt: skip

PENDULUM_AS_MBPO = (  # pendulum_mbpo's settings for pendulum_sac: what is left is the model and planning
    "agent.random_fraction=0.0", "replay.min_size=200", "workflow.num_envs=1",
    "workflow.updates_per_iteration=20", "run.total_env_steps=2_000", "run.log_every=250",
    "run.eval_every=250",
)  # fmt: skip
EXABOOSTER_AS_MBPO = (  # the same for ExaBooster
    "agent.random_fraction=0.0", "replay.capacity=65_536", "replay.min_size=4_000",
    "workflow.updates_per_iteration=12", "run.total_env_steps=48_000", "run.log_every=4_000",
    "run.eval_every=8_000",
)  # fmt: skip
EXABOOSTER_144K = ("run.total_env_steps=144_000", "run.eval_every=16_000")
PENDULUM_DATA = ("workflow.dataset=runs/studies/pendulum_offline/data.parquet",)
EXABOOSTER_DATA = ("workflow.dataset=runs/studies/exabooster_offline/data.parquet",)

STUDIES = {
    "cartpole": Study(
        "CartPole-v1",
        "The time limit is 500 steps; 475 counts as solved.",
        (
            Entry("dqn", "cartpole_dqn", 16, 475),
            Entry("ppo", "cartpole_ppo", 8, 475),
            Entry("a2c_vtrace", "cartpole_a2c", 8, 475),
            Entry("apex", "cartpole_apex", 8, 475),
        ),
    ),
    "acrobot": Study(
        "Acrobot-v1",
        "The reward is −1 per step until the tip is up; DQN has 200k steps, PPO and A2C 500k. The goal of "
        "-80 is missed, by PPO narrowly; runs with other settings than the shipped ones are not recorded.",
        (
            Entry("dqn", "acrobot_dqn", 16, -80),
            Entry("ppo", "acrobot_ppo", 8, -80),
            Entry("a2c", "acrobot_a2c", 8, -80),
        ),
        tunings=(
            Tuning(
                "dqn",
                "acrobot_dqn",
                {
                    "agent.learning_rate": (5e-4, 1e-3),
                    "agent.network.hidden": ([64, 64], [128, 128]),
                    "workflow.updates_per_iteration": (1, 4),
                },
            ),
            Tuning(
                "ppo",
                "acrobot_ppo",
                {
                    "agent.learning_rate": (5e-4, 1e-3, 2e-3),
                    "agent.gae_lambda": (0.9, 0.95),
                    "agent.epochs": (4, 10),
                },
            ),
            Tuning(
                "a2c",
                "acrobot_a2c",
                {
                    "agent.learning_rate": (1e-3, 2e-3, 4e-3),
                    "agent.entropy_coef": (0.0, 0.01),
                    "workflow.unroll_length": (8, 16),
                },
            ),
        ),
    ),
    "acrobot_dyna_q": Study(
        "Dyna-Q on Acrobot-v1",
        "Does planning save real steps? 50k steps. Dyna-Q makes one real and one simulated update per four "
        "steps. Its controls have the same data, replay, copies, batch and budget, but no model: "
        "dqn_2_updates makes as many updates as Dyna-Q, dqn_1_update only Dyna-Q's real ones. The "
        "target network's rate was tuned for each in the same way.",
        (
            Entry("dyna_q", "acrobot_dyna_q", 8, -95, ("agent.target_rate=0.02",)),
            Entry(
                "dqn_2_updates", "acrobot_dqn", 8, -95, (*ACROBOT_AS_DYNA_Q, TWO, "agent.target_rate=0.02")
            ),
            Entry("dqn_1_update", "acrobot_dqn", 8, -95, (*ACROBOT_AS_DYNA_Q, "agent.target_rate=0.02")),
        ),
        comparisons=(
            Comparison("dyna_q", "dqn_2_updates", "planning, at equally many updates"),
            Comparison("dyna_q", "dqn_1_update", "planning, and twice the updates"),
            Comparison("dqn_2_updates", "dqn_1_update", "twice the updates alone"),
        ),
        tunings=(
            Tuning("dyna_q", "acrobot_dyna_q", TARGET_RATES),
            Tuning("dqn_2_updates", "acrobot_dqn", TARGET_RATES, (*ACROBOT_AS_DYNA_Q, TWO)),
            Tuning("dqn_1_update", "acrobot_dqn", TARGET_RATES, ACROBOT_AS_DYNA_Q),
        ),
        earlier=(
            "Not the first run of this comparison: with target rates that were guessed before the "
            "tuning was done (the page at commit f575cb5, the same seeds) Dyna-Q was worse than "
            "dqn_2_updates too, also at the end, and twice the updates alone were better."
        ),
    ),
    "pendulum": Study(
        "Pendulum-v1",
        "Continuous control; TD3 and DDPG have 50k steps, PPO 500k, A2C a million. A2C's settings before and "
        "after tuning have [a page of their own](pendulum_a2c.md). Its runs are of an earlier version with "
        "another rounding, which is why the same config scores a little differently there.",
        (
            Entry("td3", "pendulum_td3", 8, -180),
            Entry("ddpg", "pendulum_ddpg", 8, -180),
            Entry("ppo", "pendulum_ppo", 8, -250),
            Entry("a2c", "pendulum_a2c", 8, -200),
        ),
    ),
    "pendulum_a2c": Study(
        "A2C on Pendulum-v1: settings before and after tuning",
        "Discount and decay of 0.9 with 4 copies and unrolls of 8 steps, against 0.95 with 16 and 16, which "
        "the config had before. A2C makes one update per unroll and sees each of its million steps once. The "
        "two differ in all of these and in the number of updates, so the page does not show which of them "
        "matters. The shipped settings are the best of the grid below; most of their neighbours miss the "
        "target.",
        (
            Entry("a2c", "pendulum_a2c", 8, -200),
            Entry("a2c_before", "pendulum_a2c", 8, -200, A2C_BEFORE),
        ),
        comparisons=(Comparison("a2c", "a2c_before", "discount, decay, copies and length of unrolls"),),
        earlier=(
            "The settings before scored -729.1 [-936.7, -549.4] on [Pendulum's page](pendulum.md) (commit "
            "9a478550f7) and -945.4 [-1009.9, -731.8] here (commit 07cc7539c5), with the same seeds: scores "
            "far from the target depend on a version's rounding."
        ),
        tunings=(
            Tuning(
                "a2c",
                "pendulum_a2c",
                {
                    "agent.learning_rate": (5e-4, 1e-3, 2e-3),
                    "agent.gae_lambda": (0.9, 0.95),
                    "agent.log_std": (0.0, -1.0),
                    "workflow.num_envs": (4, 8),
                },
                ("run.tensorboard=false",),
            ),
        ),
    ),
    "mountain_car_continuous": Study(
        "MountainCarContinuous-v0",
        "The reward for reaching the flag is 100 minus the effort; without exploration nothing is found. "
        "The machine did other work too: times are upper bounds.",
        (
            Entry("td3", "mountain_car_continuous_td3", 8, 80),
            Entry("ddpg", "mountain_car_continuous_ddpg", 8, 80),
            Entry("ppo", "mountain_car_continuous_ppo", 8, 80),
        ),
    ),
    "pendulum_sac": Study(
        "SAC on Pendulum-v1, 20k steps",
        "One update per step. Settings were tried once, on seeds 1000 to 1003, and left as they were.",
        (Entry("sac", "pendulum_sac", 8, -160),),
    ),
    "pendulum_mbpo": Study(
        "MBPO on Pendulum-v1: does a learned model save real steps?",
        "The goal is SAC's -160 with a third of its real steps, 1.67k of 5k ([SAC](pendulum_sac.md)). MBPO "
        "makes 20 updates per step, 16 of them simulated. Its control sac_20_updates has the same data, "
        "copies, networks and as many updates, all of them real; its other settings are those of "
        "pendulum_sac, not tuned for so many updates. No saving is shown over it.",
        (
            Entry("mbpo", "pendulum_mbpo", 8, -160),
            Entry("sac_20_updates", "pendulum_sac", 8, -160, PENDULUM_AS_MBPO),
        ),
        comparisons=(Comparison("mbpo", "sac_20_updates", "the model, at equally many updates"),),
    ),
    "exabooster_mbpo": Study(
        "MBPO on ExaBoosterContinuous-v0: does a learned model save real steps?",
        "Improvement over the regulator. The goal is SAC's score with a third of its real steps: sac has "
        "144k steps, mbpo and its control 48k. The target is what SAC had after 138k steps in "
        "[its own study](exabooster_sac.md). The control sac_12_updates has mbpo's data, copies, networks "
        "and as many updates, all of them real.",
        (
            Entry("mbpo", "exabooster_continuous_mbpo", 8, 0.82),
            Entry("sac_12_updates", "exabooster_continuous_sac", 8, 0.82, EXABOOSTER_AS_MBPO),
            Entry("sac", "exabooster_continuous_sac", 8, 0.82, EXABOOSTER_144K),
        ),
        metric="eval_improvement",
        comparisons=(
            Comparison("mbpo", "sac_12_updates", "the model, at equally many updates"),
            Comparison("mbpo", "sac", "a third of the real steps"),
        ),
    ),
    "pendulum_offline": Study(
        "Learning Pendulum-v1 from a recording",
        "50k recorded steps: half of the episodes by a TD3 that was stopped early, half with random actions. "
        "20k updates without acting; offline_online makes 10k and then acts for 3k steps. Behaviour cloning "
        "(bc_alpha = 0) and TD3 without imitation are the controls.",
        (
            Entry("iql", "pendulum_iql", 8, None, PENDULUM_DATA),
            Entry("td3_bc", "pendulum_td3_bc", 8, None, PENDULUM_DATA),
            Entry("offline_online", "pendulum_offline_online", 8, None, PENDULUM_DATA),
            Entry("behaviour_cloning", "pendulum_td3_bc", 8, None, (*PENDULUM_DATA, "agent.bc_alpha=0.0")),
            Entry("td3", "pendulum_td3_bc", 8, None, (*PENDULUM_DATA, "agent.behaviour_cloning=false")),
        ),
        comparisons=(
            Comparison("iql", "behaviour_cloning", "IQL against imitation"),
            Comparison("td3_bc", "behaviour_cloning", "TD3+BC against imitation"),
            Comparison("offline_online", "td3_bc", "acting for 3k steps"),
        ),
        prepare=(
            "train pendulum_td3 run.total_env_steps=12_000 --run-dir runs/studies/pendulum_offline/td3_12k",
            "record runs/studies/pendulum_offline/td3_12k --steps 50000 --random 0.5 "
            "--out runs/studies/pendulum_offline/data.parquet",
        ),
    ),
    "exabooster_offline": Study(
        "Learning ExaBoosterContinuous-v0 from a recording",
        "Improvement over the regulator. 100k recorded steps: 0.7 of the episodes by a TD3 of 100k steps as "
        "it explores, 0.3 with random actions. 20k updates without acting.",
        (
            Entry("iql", "exabooster_continuous_iql", 8, None, EXABOOSTER_DATA),
            Entry(
                "behaviour_cloning",
                "exabooster_continuous_iql",
                8,
                None,
                (*EXABOOSTER_DATA, "agent.advantage_scale=0.0"),
            ),
        ),
        metric="eval_improvement",
        comparisons=(Comparison("iql", "behaviour_cloning", "IQL against imitation"),),
        prepare=(
            "train exabooster_continuous_td3 run.total_env_steps=100_000 "
            "--run-dir runs/studies/exabooster_offline/td3_100k",
            "record runs/studies/exabooster_offline/td3_100k --steps 100000 --random 0.3 "
            "--out runs/studies/exabooster_offline/data.parquet",
        ),
    ),
    "mountain_car_continuous_sac": Study(
        "SAC on MountainCarContinuous-v0",
        "Exploration noise is correlated over time (`agent.noise_memory`); "
        "each draw alone follows the policy's distribution. Settings were tried once, on seeds 1000 to 1003, "
        "and left as they were.",
        (Entry("sac", "mountain_car_continuous_sac", 8, 93),),
    ),
    "cartpole_pqn": Study(
        "PQN on CartPole-v1",
        "Neither replay nor target network; 475 counts as solved. Settings were tried once, on seeds 1000 to "
        "1003, and left as they were.",
        (Entry("pqn", "cartpole_pqn", 8, 475),),
    ),
    "memory": Study(
        "MemoryChain: what only a memory can solve",
        "A bit is shown once and asked for ten steps later: +1 for the right answer, −1 for the wrong one. "
        "The twins are the same configs without the LSTM (DQN instead of recurrent DQN); nothing they see at "
        "the end reveals the bit, so 0 is the best they can do. The machine did other work too: times are "
        "upper bounds.",
        (
            Entry("recurrent_dqn", "memory_chain_recurrent_dqn", 8, 0.95),
            Entry("dqn_twin", "memory_chain_dqn", 8),
            Entry("a2c_lstm", "memory_chain_a2c", 8, 0.95),
            Entry("a2c_twin", "memory_chain_a2c", 8, None, ("agent.lstm=0",)),
            Entry("ppo_lstm", "memory_chain_ppo", 8, 0.95),
        ),
    ),
    "minatar_breakout": Study(
        "Breakout-MinAtar, one million steps",
        "DQN with a small CNN.",
        (Entry("dqn", "breakout_dqn", 5),),
    ),
    **{
        f"minatar_{game}_2m": Study(
            f"{title}, two million steps",
            "PPO and DQN with the same small CNN. DQN makes one update of 32 transitions per 32 steps, a "
            "quarter of its config's updates per step, so that it costs less than PPO. gymnax's reference "
            f"PPO reaches {reference} after ten million steps (its documentation; SpaceInvaders under older "
            "rules). Greedy episodes of Breakout and SpaceInvaders are all alike, so that their scores are "
            "those of one or two episodes ([why scores scatter](minatar_evaluation.md)). Seeds of an entry "
            "shared one core that did other work too: times are upper bounds.",
            (
                Entry("ppo", f"{game}_ppo", 5),
                Entry("dqn", f"{game}_dqn", 5, None, MINATAR_DQN),
            ),
        )
        for game, title, reference in (
            ("breakout", "Breakout-MinAtar", 28),
            ("space_invaders", "SpaceInvaders-MinAtar", 131),
            ("asterix", "Asterix-MinAtar", 15),
            ("freeway", "Freeway-MinAtar", 58),
        )
    },
    "minatar_a2c": Study(
        "A2C on MinAtar's games, two million steps",
        "The network is the one of PPO and DQN on the pages of the single games; A2C makes one update per "
        "1024 steps. The machine did other work too: times are upper bounds.",
        tuple(Entry(game, f"{game}_a2c", 3) for game in ("breakout", "space_invaders", "asterix", "freeway")),
    ),
    "dyna_q": Study(
        "Dyna-Q on CartPole-v1",
        "Does planning save real steps? Dyna-Q makes one real and four simulated updates per two steps. Its "
        "controls have the same data, replay, copies, batch and budget, but no model: dqn_5_updates makes as "
        "many updates as Dyna-Q, all of them real; dqn_1_update only Dyna-Q's real ones. The target "
        "network's rate was tuned for each in the same way.",
        (
            Entry("dyna_q", "cartpole_dyna_q", 8, 475, ("agent.target_rate=0.02",)),
            Entry("dqn_5_updates", "cartpole_dqn", 16, 475, (*AS_DYNA_Q, FIVE, "agent.target_rate=0.02")),
            Entry("dqn_1_update", "cartpole_dqn", 16, 475, (*AS_DYNA_Q, "agent.target_rate=0.005")),
            Entry(
                "dqn_5_updates_uniform",
                "cartpole_dqn",
                16,
                475,
                (*AS_DYNA_Q, FIVE, "agent.target_rate=0.02", UNIFORM),
            ),
        ),
        comparisons=(
            Comparison("dyna_q", "dqn_5_updates", "planning, at equally many updates"),
            Comparison("dyna_q", "dqn_1_update", "planning, and five times the updates"),
            Comparison("dqn_5_updates", "dqn_1_update", "five times the updates alone"),
            Comparison("dqn_5_updates", "dqn_5_updates_uniform", "prioritised replay, without a model"),
        ),
        tunings=(
            Tuning("dyna_q", "cartpole_dyna_q", TARGET_RATES),
            Tuning(
                "dqn_5_updates",
                "cartpole_dqn",
                TARGET_RATES,
                (*AS_DYNA_Q, "workflow.updates_per_iteration=5"),
            ),
            Tuning("dqn_1_update", "cartpole_dqn", TARGET_RATES, AS_DYNA_Q),
        ),
        earlier=(
            "Not the first run of this comparison: the controls were run again on the same seeds once "
            "their target rate had been tuned."
        ),
    ),
    "ddpg_prioritised": Study(
        "DDPG with uniform and with prioritised replay",
        "Does prioritised replay learn faster, as EXARL reported? Pendulum-v1; both make the same number of "
        "updates of the same data, and the critic's step size was tuned for each in the same way.",
        (
            Entry("uniform", "pendulum_ddpg", 16, -180, (CRITIC_RATE, "run.eval_every=2_000")),
            Entry(
                "prioritised", "pendulum_ddpg", 16, -180, (PRIORITISED, CRITIC_RATE, "run.eval_every=2_000")
            ),
        ),
        comparisons=(Comparison("prioritised", "uniform", "prioritised replay"),),
        tunings=(
            Tuning("uniform", "pendulum_ddpg", CRITIC_RATES, ("run.eval_every=2_000",)),
            Tuning("prioritised", "pendulum_ddpg", CRITIC_RATES, (PRIORITISED, "run.eval_every=2_000")),
        ),
        earlier=(
            "Not the first run of this comparison: with 8 seeds and the shipped step size (the page at "
            "commit 39cb267) no difference was shown. More seeds and the step size from the tuning "
            "below, which is the edge of its grid, were taken after that result had been seen. Together "
            "this is weak evidence."
        ),
    ),
    "minatar_rainbow": Study(
        "Rainbow on Breakout-MinAtar, one million steps",
        "Double, dueling, three-step returns, prioritised replay, C51 and noisy layers, against the shipped "
        "DQN (double, three steps, uniform) with the same network, batch and number of updates. The goal is "
        "1.3 times DQN's score.",
        (
            Entry("rainbow", "breakout_rainbow", 5),
            Entry("dqn", "breakout_dqn", 5),
        ),
        comparisons=(Comparison("rainbow", "dqn", "all of Rainbow"),),
    ),
    "minatar_pqn": Study(
        "PQN on MinAtar's games, two million steps",
        "Neither replay nor target network. To be compared with DQN and PPO at the same steps: "
        "[Breakout](minatar_breakout_2m.md), [Asterix](minatar_asterix_2m.md), "
        "[Freeway](minatar_freeway_2m.md), [SpaceInvaders](minatar_space_invaders_2m.md); targets are the "
        "better score of the two. The settings are the same for all games. The goal of a fifth of DQN's wall "
        "time at an equal score was not measured: the runs were made by different versions on a machine with "
        "other work, and the times here are longer than DQN's there.",
        (
            Entry("breakout", "breakout_pqn", 5, 23.9),
            Entry("asterix", "asterix_pqn", 5, 28.9),
            Entry("freeway", "freeway_pqn", 5, 63.2),
            Entry("space_invaders", "space_invaders_pqn", 5, 161.0),
        ),
    ),
    "random_warmup": Study(
        "Uniform random warm-up for TD3 and DDPG",
        "Does it help to act uniformly at random at the start of a run, as is common, instead of with "
        "the untrained policy and its noise? Pendulum-v1 with the shipped settings; `_warm` entries act "
        "uniformly for the first 4 % of the steps, the others never. "
        "No difference is shown, for either agent, on the way or at the end. So `agent.random_fraction` is 0 "
        "by default, and configs that set it only follow common practice.",
        (
            Entry("td3_warm", "pendulum_td3", 8, -180, ("agent.random_fraction=0.04",)),
            Entry("td3", "pendulum_td3", 8, -180, ("agent.random_fraction=0.0",)),
            Entry("ddpg_warm", "pendulum_ddpg", 8, -180, ("agent.random_fraction=0.04",)),
            Entry("ddpg", "pendulum_ddpg", 8, -180, ("agent.random_fraction=0.0",)),
        ),
        comparisons=(
            Comparison("td3_warm", "td3", "uniform actions at the beginning"),
            Comparison("ddpg_warm", "ddpg", "uniform actions at the beginning"),
        ),
    ),
    "dueling": Study(
        "Dueling DQN on CartPole-v1",
        "Does dueling help, and do its streams need hidden layers of their own? CartPole-v1 with the shipped "
        "DQN config. `dueling_hidden` splits the network before its last hidden layer, as Wang et al. (2016) "
        "do.",
        (
            Entry("plain", "cartpole_dqn", 16, 475),
            Entry("dueling", "cartpole_dqn", 16, 475, ("agent.dueling=true",)),
            Entry(
                "dueling_hidden",
                "cartpole_dqn",
                16,
                475,
                ("agent.dueling=true", "agent.network.hidden=[64]", "agent.dueling_hidden=[64]"),
            ),
        ),
        comparisons=(
            Comparison("dueling", "plain", "streams of one layer"),
            Comparison("dueling_hidden", "plain", "streams with a hidden layer"),
            Comparison("dueling_hidden", "dueling", "where the network splits"),
        ),
    ),
    "recurrent_dqn_options": Study(
        "Recurrent DQN: rescaled values, previous action and reward",
        "Both are R2D2's. Do square roots of values (`agent.rescale`) help? On CartPole-v1 (`cart`), whose "
        "returns of up to 500 are large; the LSTM is not needed there. Does it help to observe the previous "
        "action and reward (`env.previous_step`)? On MemoryChain (`chain`), whose bit has to be remembered; "
        "0.95 counts as solved there. Rescaling is better over the run; at its end no difference is shown, "
        "and both miss the target. The previous action and reward make no difference. Both stay off by "
        "default.",
        (
            Entry("cart", "memory_chain_recurrent_dqn", 5, 475, RECURRENT_CARTPOLE),
            Entry(
                "cart_rescaled",
                "memory_chain_recurrent_dqn",
                5,
                475,
                (*RECURRENT_CARTPOLE, "agent.rescale=true"),
            ),
            Entry("chain", "memory_chain_recurrent_dqn", 5, 0.95, RECURRENT_CHAIN),
            Entry(
                "chain_previous",
                "memory_chain_recurrent_dqn",
                5,
                0.95,
                (*RECURRENT_CHAIN, "env.previous_step=true"),
            ),
        ),
        comparisons=(
            Comparison("cart_rescaled", "cart", "rescaled values"),
            Comparison("chain_previous", "chain", "previous action and reward"),
        ),
    ),
    "exabooster_dyna_q": Study(
        "Dyna-Q on ExaBooster",
        "200k real steps. The control is a DQN that makes as many updates of the same data.",
        (
            Entry("dyna_q", "exabooster_dyna_q", 8, 1.45),
            Entry("dqn_2_updates", "exabooster_dqn", 8, 1.45, EXABOOSTER_AS_DYNA_Q),
        ),
        metric="eval_improvement",
        episode_steps=100,
        references=EXABOOSTER_REFERENCES,
        comparisons=(Comparison("dyna_q", "dqn_2_updates", "planning, at equally many updates"),),
    ),
    "exabooster_sac": Study(
        "SAC on ExaBooster with continuous actions",
        "500k steps, as TD3 and DDPG have on [the page of ExaBooster](exabooster.md), which explains the "
        "figures. The goal of 1.75 is missed: SAC is level with TD3 and DDPG. Tried: one setting, the one "
        "shipped (a target entropy of -3 instead of -1, because good actions are a few hundredths of the "
        "range apart). Not tried: PPO's stack of 30 ticks, other target entropies and step sizes, more "
        "updates per step. The machine did other work too: the time is an upper bound.",
        (Entry("sac", "exabooster_continuous_sac", 8, 1.75),),
        metric="eval_improvement",
        episode_steps=100,
        references=EXABOOSTER_REFERENCES,
    ),
    "exabooster": Study(
        "ExaBooster at H = 100: improvement factor over the regulator",
        "1 is the machine's own regulator; a retuned PI controller reaches 1.17, a controller that knows "
        "drift and phase 1.78 through the thirty discrete actions and 1.82 through the continuous ones "
        "([the table](exabooster_generator.md)). "
        "1.45 equals the original authors' rolling result. The goal for the best agent is 1.82, and no entry "
        "reaches it; PPO with continuous actions is nearest. The machine did other work too: wall times of "
        "entries cannot be compared.",
        (
            Entry("ppo", "exabooster_ppo", 8, 1.45),
            Entry("dqn", "exabooster_dqn", 8, 1.45),
            Entry("a2c", "exabooster_a2c", 8, 1.45),
            Entry("a2c_vtrace", "exabooster_a2c", 8, 1.45, ("agent.vtrace=true",)),
            Entry("recurrent_dqn", "exabooster_recurrent_dqn", 8, 1.45),
            Entry("ppo_continuous", "exabooster_continuous_ppo", 8, 1.75),
            Entry("td3_continuous", "exabooster_continuous_td3", 8, 1.45),
            Entry("ddpg_continuous", "exabooster_continuous_ddpg", 8, 1.45),
        ),
        metric="eval_improvement",
        episode_steps=100,
        references=EXABOOSTER_REFERENCES,
    ),
}


def command(study: str, entry: Entry) -> list[str]:
    settings = [f"run.seeds={entry.seeds}", f"run.name={study}.{entry.name}", *entry.overrides]
    return ["train", entry.config, *settings, "--run-dir", f"runs/studies/{study}/{entry.name}", "--resume"]


def tuning_folder(study: str) -> Path:
    return ROOT / "runs" / "studies" / study / "tuning"


def train(study: str, only: str | None) -> None:
    for line in STUDIES[study].prepare:
        arguments = line.split()
        if not (ROOT / arguments[-1]).exists():
            subprocess.run([sys.executable, "-m", "jaxrl_hpc.cli.main", *arguments], cwd=ROOT, check=True)
    for one in STUDIES[study].tunings:
        if only in (None, one.name):
            tuning.train(one, tuning_folder(study))
    for entry in STUDIES[study].entries:
        if only in (None, entry.name):
            run = [sys.executable, "-m", "jaxrl_hpc.cli.main", *command(study, entry)]
            print("+ jaxrl-hpc", *command(study, entry), flush=True)
            subprocess.run(run, cwd=ROOT, check=True)


def finished(study: str) -> list[tuple[Entry, RunData]]:
    rows = []
    for entry in STUDIES[study].entries:
        folder = ROOT / "runs" / "studies" / study / entry.name
        if folder.is_dir() and RunDirectory(folder).read_summary() is not None:
            rows.append((entry, load_run(folder)))
    return rows


def steps_to_target(metric: str, entry: Entry, run: RunData) -> str:
    """When the score over seeds of the evaluations on the way first reached the target."""
    curve = run.curve("eval", metric)
    if entry.target is None or curve is None:
        return "–"
    reached = [x for x, y in zip(curve.x, curve.value, strict=True) if y >= entry.target]
    return count(reached[0]) if reached else "never"


def updates_per_step(run: RunData) -> str:
    """Gradient steps per environment step, from the counters of the run."""
    return f"{run.summary['updates'] / run.summary['env_steps']:.2g}" if "updates" in run.summary else "–"


def final_score(summary: dict[str, Any], metric: str) -> tuple[float, float, float]:
    """From the seeds' own figures where they were kept: the interval is then today's method."""
    seeds = list(summary.get(f"{metric}_per_seed", {}).values())
    if len(seeds) > 1:
        value, low, high = (float(x) for x in score(np.array(seeds)))
        return value, low, high
    return summary[f"{metric}_score"], *summary[f"{metric}_interval"]


COLUMNS = (
    "entry", "seeds", "steps each", "updates per step", "target", "score [interval]", "verdict", "reached at",
    "over the run", "training return", "time",
)  # fmt: skip


def row(study: str, entry: Entry, run: RunData) -> str:
    s, metric, digits = run.summary, STUDIES[study].metric, STUDIES[study].digits
    value, low, high = final_score(s, metric)
    over = score(np.array(tuning.mean_over_run(run, metric)))
    training = score(np.array(tuning.training_return(run)))
    verdict = "–" if entry.target is None else ("reached" if value >= entry.target else "**missed**")
    cells = [
        entry.name,
        str(s["seeds"]),
        count(s["env_steps"]),
        updates_per_step(run),
        "–" if entry.target is None else f"{entry.target:g}",
        f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]",
        verdict,
        steps_to_target(metric, entry, run),
        f"{over.value:.{digits}f} [{over.low:.{digits}f}, {over.high:.{digits}f}]",
        f"{training.value:.1f} [{training.low:.1f}, {training.high:.1f}]",
        duration(s["wall_seconds"]),
    ]
    return "| " + " | ".join(cells) + " |"


def compared(study: str, rows: list[tuple[Entry, RunData]]) -> list[str]:
    """Entries against their controls, if the study has any."""
    metric = STUDIES[study].metric
    over_run = {entry.name: tuning.mean_over_run(run, metric) for entry, run in rows}
    final = {entry.name: list(run.summary[f"{metric}_per_seed"].values()) for entry, run in rows}
    lines = comparison.table(STUDIES[study].comparisons, over_run, final, STUDIES[study].digits)
    head = (
        "Differences of the scores with 95 % bootstrap intervals over seeds; a difference counts as shown if "
        "its interval excludes zero. Intervals are not corrected for the number of comparisons."
    )
    earlier = ["", STUDIES[study].earlier] if STUDIES[study].earlier else []
    return ["", "## Against controls", "", head, "", *lines, *earlier] if lines else []


def tuned(study: str) -> list[str]:
    """What was tried before, if anything was."""
    folder = tuning_folder(study)
    lines: list[str] = []
    for one in STUDIES[study].tunings:
        if (folder / one.name).is_dir():
            lines += ["", *tuning.table(one, folder, STUDIES[study].metric, STUDIES[study].digits)]
            settings = f", with `{' '.join(one.overrides)}`" if one.overrides else ""
            made = ", ".join(f"`{commit}`" for commit in tuning.commits(one, folder))
            lines += ["", f"{one.name}: `{one.config}`{settings}, commit {made}."]
    head = (
        f"Settings were chosen on seeds {tuning.FIRST_SEED} and up, which are not reported above; best "
        "over the run first. Mean and range of fewer than five seeds."
    )
    return ["", "## Tuning", "", head, *lines] if lines else []


def recorded(study: Study, rows: list[tuple[Entry, RunData]]) -> list[str]:
    """What entries learned from, if it was recorded."""
    found = [run.summary for _, run in rows if "dataset_return" in run.summary]
    if not found:
        return []
    summary = found[0]
    lines = [f"- `jaxrl-hpc {line}`" for line in study.prepare]
    text = (
        f"{summary['dataset_transitions']:,} transitions; mean return of its {summary['dataset_episodes']:,} "
        f"whole episodes {summary['dataset_return']:.1f}. Made by"
    )
    return ["", "## The recording", "", text, "", *lines]


def figure_of(study: str) -> Figure:
    """From the stored curves."""
    runs, metric = curves.load(study)
    figure = learning_curves(runs, "eval", metric)
    annotate(figure, STUDIES[study])
    return figure


def annotate(figure: Figure, study: Study) -> None:
    """Reference controllers as lines with their names in the last panel, episodes as a second axis."""
    panels = [panel for panel in figure.axes if panel.get_visible()]
    if study.episode_steps and len(panels) == 2:
        per = study.episode_steps
        top = panels[0].secondary_xaxis("top", functions=(lambda x: x / per, lambda x: x * per))
        top.set_xlabel("Episodes", color=MUTED)
        top.tick_params(colors=MUTED)
        top.spines["top"].set_color(LINE)
        top.xaxis.set_major_formatter(EngFormatter(sep=""))
    for label, rule, limited in study.references:
        value = reference(rule, limited)
        for panel in panels:
            panel.axhline(value, color=REFERENCE, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        panels[-1].annotate(
            f"{label} {value:.2f}",
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(-2, -8),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color=MUTED,
            bbox={"facecolor": "white", "alpha": 0.9, "edgecolor": "none", "pad": 0.5},
        )


def reference(rule: str, limited: bool) -> float:
    """Improvement factor of a rule of ExaBooster over 1024 episodes."""
    import jax

    from jaxrl_hpc.envs.exabooster import ExaBoosterConfig, make
    from jaxrl_hpc.envs.exabooster.policies import RULES, improvement

    env, params = make(ExaBoosterConfig())
    return improvement(env, params, RULES[rule], jax.random.key(7), 1024, limited)[0]


def head(study: str) -> list[str]:
    """A page's lines before its figure."""
    description = STUDIES[study]
    made = f"Made by `python scripts/studies/learning.py {study}`."
    return [f"# {description.title}", "", f"{made} {description.text}"]


def write_page(study: str) -> None:
    rows = finished(study)
    if not rows:
        sys.exit(f"no run of study {study!r} has finished")
    description = STUDIES[study]
    runs = load_runs([run.path for _, run in rows])
    RESULTS.mkdir(parents=True, exist_ok=True)
    made = {entry.name: run for entry, run in rows}
    kept = kept_rows(
        RESULTS / f"{study}.md", COLUMNS, [e.name for e in description.entries if e.name not in made]
    )
    names = [e.name for e in description.entries]
    results = {e.name: row(study, e, run) for e, run in rows} | {n: k.result for n, k in kept.items()}
    commands = {
        e.name: f"| {e.name} | `jaxrl-hpc {' '.join(command(study, e))}` | `{run.summary['commit'][:10]}` |"
        for e, run in rows
    } | {n: k.command for n, k in kept.items()}
    missing = [name for name in names if name not in results]
    shown = set(results)  # runs are named after their folders
    all_curves = shown <= {run.name for run in runs} | curves.stored_names(study)
    if all_curves:
        curves.store(study, "learning", runs, description.metric, shown)
        figure_of(study).savefig(RESULTS / f"{study}.png", dpi=110)
    figure = [f"![learning curves]({study}.png)", ""] if (RESULTS / f"{study}.png").exists() else []
    figure += [curves.EARLIER_FIGURE, ""] if figure and not all_curves else []
    not_again = (
        f"Not run again when this page was last written, with intervals as made then: {', '.join(kept)}."
    )
    lines = [
        *head(study),
        "",
        *figure,
        "| " + " | ".join(COLUMNS) + " |",
        "|---" * len(COLUMNS) + "|",
        *(results[name] for name in names if name in results),
        "",
        "[What the columns mean](index.md#what-the-columns-mean).",
        *([f"Not yet run: {', '.join(missing)}."] if missing else []),
        *(["", not_again] if kept else []),
        *compared(study, rows),
        *tuned(study),
        *recorded(description, rows),
        "",
        "## Commands",
        "",
        "| entry | command | commit |",
        "|---|---|---|",
        *(commands[name] for name in names if name in commands),
    ]
    pictures = [run.path / "plots" / "episode.png" for _, run in rows]
    if pictures[0].exists():  # the first entry's episode also stands in the README
        IMAGES.mkdir(parents=True, exist_ok=True)
        shutil.copy(pictures[0], IMAGES / f"{study}_episode.png")
        lines += ["", f"![an episode](../images/{study}_episode.png)"]
    (RESULTS / f"{study}.md").write_text("\n".join(lines) + "\n")
    readme.write()
    print(f"wrote docs/results/{study}.md")


if __name__ == "__main__":
    run(__doc__, STUDIES, train, write_page, head)
