"""Policies, values and advantages written out in NumPy, for checks of A2C and PPO."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.types import Transition
from tests.agents.numpy_check import dense

GAMMA, LAMBDA = 0.9, 0.8


def with_ends(data: Transition) -> Transition:
    """An unroll with other rewards, and with terminations and truncations inside."""
    random = np.random.default_rng(0)
    ended, cut = random.random((2, *data.last.shape)) < 0.15
    return data._replace(
        discount=jnp.asarray(1.0 - ended, jnp.float32),
        last=jnp.asarray(ended | cut),
        reward=jnp.asarray(random.normal(size=data.last.shape), jnp.float32),
    )


def readout(params: dict, x: np.ndarray) -> np.ndarray:
    return x @ params["kernel"].T + params["bias"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm_step(
    own: dict, x: np.ndarray, cell: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    gates = dense(own["Dense_0"], x) + hidden @ own["recurrent"]
    enter, forget, candidate, leave = np.split(gates, 4, axis=-1)
    cell = sigmoid(forget + 1) * cell + sigmoid(enter) * np.tanh(candidate)
    return cell, sigmoid(leave) * np.tanh(cell)


def look(params: dict, data: Transition, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features for the policy [T, B, F], values of what was seen and of what it led to [T, B]."""
    own = params["params"]

    def torso(name: str, x: np.ndarray) -> np.ndarray:
        return np.tanh(dense(own[name]["Dense_0"], x))

    def value(features: np.ndarray) -> np.ndarray:
        return readout(own["Readout_0"], features)[..., 0]

    if not width:
        judged = [value(torso("critic_torso", x)) for x in (data.obs, data.next_obs)]
        return torso("torso", data.obs), judged[0], judged[1]
    cell = hidden = np.zeros((data.obs.shape[1], width))
    rows, after = [], []
    for t in range(data.obs.shape[0]):
        if t:
            keep = 1 - data.last[t - 1][:, None]
            cell, hidden = keep * cell, keep * hidden
        cell, hidden = lstm_step(own["LSTM_0"], torso("torso", data.obs[t]), cell, hidden)
        rows.append(hidden)
        after.append(lstm_step(own["LSTM_0"], torso("torso", data.next_obs[t]), cell, hidden)[1])
    return np.stack(rows), value(np.stack(rows)), value(np.stack(after))


def estimate(data: Transition, value: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Generalised advantages, backwards in time."""
    found, ahead = np.zeros_like(value), np.zeros(value.shape[1])
    for t in reversed(range(len(value))):
        error = data.reward[t] + GAMMA * data.discount[t] * following[t] - value[t]
        ahead = error + GAMMA * LAMBDA * data.discount[t] * (1 - data.last[t]) * ahead
        found[t] = ahead
    return found


def policy(
    params: dict, features: np.ndarray, data: Transition, options: dict
) -> tuple[np.ndarray, np.ndarray]:
    """log-probabilities and entropies [T, B]."""
    head = params["params"]["head"]
    if "log_std" not in options:
        logits = readout(head["Readout_0"], features)
        log = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        taken = np.take_along_axis(log, data.action.astype(int)[..., None], axis=-1)[..., 0]
        return taken, -(np.exp(log) * log).sum(axis=-1)
    mean, raw = readout(head["Readout_0"], features)[..., 0], data.extras["raw"][..., 0]
    log_std = readout(head["Readout_1"], features)[..., 0] if "state_std" in options else head["log_std"][0]
    density = -0.5 * ((raw - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    slope = 2.0 * (1 - np.tanh(raw) ** 2) if "distribution" in options else 2.0  # actions are -2 … 2
    return density - np.log(slope), log_std + 0.5 * np.log(2 * np.pi * np.e) + np.log(2.0) + 0 * mean
