"""stable-baselines3, and sbx, which is the same with JAX: environments of Gymnasium, stepped by Python."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np
from serve import Loop

CHUNK = 512  # environment steps of one call of `learn`, at least
EPISODES = 32


def activation(library: str, name: str) -> Any:
    if library == "stable_baselines3":
        from torch import nn

        return {"relu": nn.ReLU, "tanh": nn.Tanh}[name]
    from flax import linen

    return {"relu": linen.relu, "tanh": linen.tanh}[name]


def convolutions(work: dict[str, Any]) -> Any:
    """The work's convolutions and its hidden layer, as a class of features for both heads."""
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from torch import nn

    class Features(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, work["width"])
            layers, channels = [], space.shape[0]
            for filters, kernel, stride in zip(work["filters"], work["kernel"], work["stride"], strict=True):
                layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
                channels = filters
            self.images = nn.Sequential(*layers, nn.Flatten())
            with torch.no_grad():
                size = self.images(torch.zeros(1, *space.shape)).shape[1]
            self.hidden = nn.Sequential(nn.Linear(size, work["width"]), nn.ReLU())

        def forward(self, observations: Any) -> Any:
            return self.hidden(self.images(observations))

    return Features


def games(work: dict[str, Any], copies: int, seed: int) -> Any:
    """Copies of an Atari game with the usual wrappers and four stacked frames."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    name = work["env"].replace("-Atari", "NoFrameskip-v4")
    return VecFrameStack(make_atari_env(name, n_envs=copies, seed=seed), n_stack=4)


def arguments(library: str, work: dict[str, Any]) -> dict[str, Any]:
    """The workload in their settings."""
    kind, steps = work["algorithm"], work["unroll_length"]
    rows = work["num_envs"] * steps // max(work["minibatches"], 1)
    layers = [work["width"]] * 2
    policy: dict[str, Any] = {"net_arch": {"pi": layers, "vf": layers} if kind == "ppo" else layers}
    policy["activation_fn"] = activation(library, "tanh" if kind == "ppo" else "relu")
    common = {"seed": work["seed"], "learning_rate": work["learning_rate"], "policy_kwargs": policy}
    if library == "stable_baselines3":
        common["device"] = "cpu"
    if work["filters"]:
        common["policy_kwargs"] = {"features_extractor_class": convolutions(work), "net_arch": []}
        common["clip_range"] = work["clip"]
    if kind == "ppo":
        return common | {"n_steps": steps, "batch_size": rows, "n_epochs": work["epochs"]}
    common |= {
        "buffer_size": work["capacity"],
        "batch_size": work["batch_size"],
        "learning_starts": 1_000,
        "train_freq": 1,
        "gradient_steps": 1,
        "tau": 0.005,
    }
    if kind == "dqn":
        fraction = work["exploration_fraction"]
        return common | {"target_update_interval": 1, "exploration_fraction": fraction}
    from stable_baselines3.common.noise import NormalActionNoise

    return common | {"action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))}


def make(library: str, work: dict[str, Any]) -> Loop:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    image = bool(work["filters"])
    if image:
        envs = games(work, work["num_envs"], work["seed"])
    else:
        envs = make_vec_env(work["env"], n_envs=work["num_envs"], seed=work["seed"])
    algorithm = getattr(importlib.import_module(library), work["algorithm"].upper())
    model = algorithm("CnnPolicy" if image else "MlpPolicy", envs, **arguments(library, work))
    chunk = max(CHUNK, work["num_envs"] * work["unroll_length"])
    updates_per_call = max(work["minibatches"], 1)  # of PPO: it counts passes over an unroll

    def run(chunks: int) -> None:
        model.learn(chunks * chunk, reset_num_timesteps=False)

    def counters() -> tuple[int, int]:
        return int(model.num_timesteps), int(model._n_updates) * updates_per_call

    def evaluate() -> float:
        env = games(work, 1, 7) if image else make_vec_env(work["env"], n_envs=1, seed=7)
        mean, _ = evaluate_policy(model, env, n_eval_episodes=EPISODES)
        return float(np.mean(mean))

    start = time.perf_counter()
    if work["warm"]:
        run(max(1, -(-1_100 // chunk)))
        run(1)
    return Loop(run, counters, evaluate, time.perf_counter() - start if library == "sbx" else 0.0)
