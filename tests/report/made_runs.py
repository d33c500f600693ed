"""Run directories with made-up but lifelike content, written by the package's own writers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxrl_hpc.metrics.parquet import MetricsWriter
from jaxrl_hpc.ops.statistics import score, score_text
from jaxrl_hpc.runs.directory import RunDirectory


def make_run(
    path: Path,
    seeds: int = 8,
    speed: float = 1.0,
    agent: str = "dqn",
    env: str = "CartPole-v1",
    finished: bool = True,
    points: int = 50,
) -> Path:
    run = RunDirectory.open(path, resume=False)
    run.write_config(
        {
            "agent": {
                "name": agent,
                "learning_rate": 1e-3 * speed,
                "network": {"hidden": [64, 64]},
                "double": True,
            },
            "env": {"name": env},
            "replay": {"name": "uniform", "capacity": 65536},
            "workflow": {"name": "fused", "num_envs": 4},
            "run": {"name": path.name, "total_env_steps": 100_000, "seeds": seeds},
        }
    )
    writer, final = MetricsWriter(path), []
    generator = np.random.default_rng(seeds)
    skill = generator.normal(1.0, 0.15, seeds)
    for number in range(1, points + 1):
        point = number * 50 / points
        steps, wall = round(2000 * point), 0.31 * point / speed + 0.02 * generator.random()
        for seed in range(seeds):
            core = {"iteration": round(500 * point), "env_steps": steps, "updates": round(500 * point)}
            core |= {"seed": seed}
            core |= {"wall_seconds": wall}
            level = 500 / (1 + np.exp(-(point * speed * skill[seed] - 18) / 4))
            train = {
                "episode_return": max(9.0, level * 0.9 + 20 * generator.normal()) if number > 1 else np.nan
            }
            train |= {"loss": float(np.exp(-point / 20) + 0.05 * generator.random()), "episodes": 20}
            train |= {"q_mean": float(level / 10), "time/acting": 0.1, "time/learning": 0.2}
            writer.append([core | {"kind": "train"} | train])
            if number % max(1, points // 10 if points == 50 else 1) == 0:
                value = float(min(500, max(9, level + 10 * generator.normal())))
                writer.append([core | {"kind": "eval", "eval_return": value, "eval_length": value}])
                final = [*final, value][-seeds:]
    writer.close()
    if finished:
        summary = {"agent": agent, "env": env, "workflow": "fused", "seeds": seeds}
        summary |= {
            "env_steps": 100_000,
            "updates": 25_000,
            "wall_seconds": 15.5 / speed,
            "compile_seconds": 2.1,
        }
        summary |= {
            "env_steps_per_second": 6450.0 * seeds * speed,
            "updates_per_second": 1612.0 * seeds * speed,
        }
        final = [float(value + 2) for value in final]  # evaluated again, with other start states
        found = score(np.array(final))
        summary |= {"eval_return_per_seed": {str(seed): value for seed, value in enumerate(final)}}
        summary |= {"eval_return_score": found.value, "eval_return_interval": [found.low, found.high]}
        summary |= {"eval_spread": score_text(len(final))}
        summary |= {"params_sha256": "0f" * 32, "version": "0.1.0", "commit": "ab" * 20}
        run.write_summary(summary)
    return path
