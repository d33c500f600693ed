"""Recorded data in the place of an environment: fitted Q evaluation against values in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc import datasets
from jaxrl_hpc.datasets import Columns, parquet
from jaxrl_hpc.envs import recorded
from jaxrl_hpc.envs.fitted_q import FittedQSettings, estimator
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.evaluation import evaluate_run
from jaxrl_hpc.runtime.record import record_run
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.types import EnvSpec
from tests.datasets import made

GAMMA = 0.8


def chain(rows: int, discrete: bool) -> datasets.Dataset:
    """Three states in a row, one-hot. Action 1 (or > 0) goes on, 0 stays; the last state ends with 1.

    Rewards are 0.1 for staying, so that values depend on the policy and on the time it takes.
    """
    rng = np.random.default_rng(0)
    state, going = rng.integers(0, 3, rows), rng.integers(0, 2, rows)
    eye = np.eye(3, dtype=np.float32)
    ends = (state == 2) & (going == 1)
    following = np.minimum(state + going, 2)
    reward = np.where(going == 1, np.where(ends, 1.0, 0.0), 0.1)
    action = going.astype(np.int32) if discrete else (2.0 * going - 1.0).astype(np.float32)[:, None]
    one = np.ones(1, np.float32)
    spec = EnvSpec("chain", (3,), np.dtype(np.float32), 2, (), None, None, 50)
    if not discrete:
        spec = spec._replace(num_actions=None, action_shape=(1,), action_low=-one, action_high=one)
    columns = Columns(eye[state], action, reward, ends, ~ends, np.arange(rows), eye[following])
    return datasets.from_columns("chain", columns, spec)


def closed_form(go: float) -> np.ndarray:
    """Values of a policy that goes on with certainty (1) or never (0), from the Bellman equation."""
    if go == 0:
        return np.full(3, 0.1 / (1 - GAMMA))
    return np.array([GAMMA**2, GAMMA, 1.0])


@pytest.mark.parametrize(("discrete", "go"), [(True, 1), (False, 0), (False, 1)])
def test_fitted_values_are_those_in_closed_form(discrete: bool, go: int) -> None:
    data = chain(2000, discrete)
    settings = FittedQSettings(GAMMA, 1500, 128, (32,), 3e-3)

    def act(obs, keys):
        chosen = jnp.full(obs.shape[0], go, jnp.int32)
        return chosen if discrete else (2.0 * chosen - 1.0)[:, None]

    estimate = jax.jit(lambda key: estimator(data, settings)(act, key, 3000))
    values = estimate(jax.random.key(0))
    share = np.bincount(np.argmax(np.asarray(data.data.obs), axis=1), minlength=3) / data.rows
    np.testing.assert_allclose(values.mean(), share @ closed_form(go), rtol=0.08)
    low, high = closed_form(go).min(), closed_form(go).max()
    assert values.min() > low - 0.1 and values.max() < high + 0.1


@pytest.mark.full
def test_estimates_of_several_seeds_at_once() -> None:
    """Under vmap the host is asked once for all."""
    data, settings = chain(200, True), FittedQSettings(GAMMA, 20, 16, (8,), 1e-3)
    act = lambda obs, keys: jnp.zeros(obs.shape[0], jnp.int32)  # noqa: E731
    estimate = lambda key: estimator(data, settings)(act, key, 4)  # noqa: E731
    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(estimate))(keys)
    np.testing.assert_allclose(together[1], jax.jit(estimate)(keys[1]), rtol=1e-4)


def offline(path, **sections) -> configs.Config:
    base = {
        "agent": {"name": "iql", "network": {"hidden": [8]}, "batch_size": 8},
        "env": {"name": "dataset", "path": str(path), "updates": 10},
        "replay": {"name": "uniform", "capacity": 1000, "min_size": 16},
        "workflow": {"name": "offline"},
        "run": {"total_env_steps": 20, "log_every": 10, "eval_every": 10, "tensorboard": False}
        | {"eval_episodes": 4, "final_eval_episodes": 8},
    }
    return configs.from_dict({name: part | sections.get(name, {}) for name, part in base.items()})


def test_a_run_without_an_environment(tmp_path) -> None:
    path = made.random_file("Pendulum-v1", 500)
    done = train(offline(path, run={"seeds": 2}), tmp_path / "run", say=lambda _: None)
    assert done.summary["env"] == "Pendulum-v1" and done.summary["updates"] == 20
    assert np.isfinite(done.summary["eval_return_score"])
    assert set(evaluate_run(tmp_path / "run", 4)["eval_return_per_seed"]) == {"0", "1"}
    with pytest.raises(UserError, match="trained from recorded data without an environment"):
        record_run(tmp_path / "run", tmp_path / "a.parquet", 10)


def test_nobody_acts_in_recorded_data() -> None:
    path = made.random_file("Pendulum-v1", 500)
    for workflow in ({"name": "fused"}, {"name": "offline", "online_after": 10}):
        with pytest.raises(UserError, match="env 'dataset' is recorded data, in which no agent can act"):
            build(offline(path, workflow=workflow))
    with pytest.raises(UserError, match=r"env\.path: name a file of recorded transitions"):
        recorded.make(recorded.Config())


def test_a_damaged_file_is_one_sentence(tmp_path) -> None:
    path = tmp_path / "a.parquet"
    env = made.make_env("Pendulum-v1")
    parquet.write(path, made.random_columns(env, 50), env.spec, {})
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match="not a readable Parquet file, or only a part of one"):
        build(offline(path))
