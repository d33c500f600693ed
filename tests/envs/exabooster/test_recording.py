"""Recordings: the reader against pandas doing what EXARL does, its errors, and exact replay of residuals."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxrl_hpc.envs.exabooster import ExaBoosterConfig, actions, channels, make, recording
from jaxrl_hpc.errors import UserError

TICKS, GAP = 3000, 1200  # of the recording


def _edit(path, change):
    frame = pd.read_csv(path)
    frame = change(frame)
    frame.to_csv(path, index=False)
    return path


def _spoil(frame):
    frame.loc[5, "B:LINFRQ"] = np.inf
    frame.loc[9, "I:IB"] = np.nan
    frame.loc[TICKS - 3, "B:VIMIN"] = np.nan
    return pd.concat([frame.iloc[:50], frame.iloc[49:]])  # row 49 twice


def test_reader_against_pandas(path):
    _edit(path, _spoil)
    frame = pd.read_csv(path, nrows=2900)
    frame = frame.replace([np.inf, -np.inf], np.nan).dropna()
    frame["B:VIMIN"] = frame["B:VIMIN"].shift(-1)
    frame = frame.set_index(pd.to_datetime(frame.time)).dropna().drop_duplicates()
    expected = frame[list(channels.NAMES)].to_numpy(np.float32)

    got = recording.read(path, 2900, need_set_point=True)
    np.testing.assert_array_equal(recording.shifted_rows(got).astype(np.float32), expected)
    np.testing.assert_array_equal(got.set_point, frame["B_VIMIN"])
    scaling = recording.scaling(got)
    np.testing.assert_array_equal(scaling.minimum, expected.min(axis=0))
    np.testing.assert_array_equal(scaling.maximum, expected.max(axis=0))


def test_no_window_spans_a_gap(path):
    _edit(path, _spoil)
    got = recording.read(path, TICKS, need_set_point=False)
    assert got.set_point is None
    ends = recording.window_ends(got.joined, before=149, after=0)
    assert len(ends)
    for end in ends:
        steps = np.diff(got.seconds[end - 149 : end + 1])
        assert steps.max() < 0.1 and steps.min() > 0.03
    # every window that it leaves out does span one
    for end in set(range(149, len(got.seconds))) - set(ends.tolist()):
        steps = np.diff(got.seconds[end - 149 : end + 1])
        assert steps.max() > 0.1 or steps.min() < 0.03


@pytest.mark.parametrize("kind", ["zone", "seconds"])
def test_other_times(path, kind):
    plain = recording.read(path, TICKS, need_set_point=True)

    def change(frame):
        if kind == "zone":
            frame["time"] = frame["time"] + "+00:00"
        else:
            frame["time"] = (pd.to_datetime(frame["time"]) - pd.Timestamp(0)) / pd.Timedelta(seconds=1)
        return frame

    other = recording.read(_edit(path, change), TICKS, need_set_point=True)
    np.testing.assert_allclose(other.seconds, plain.seconds, atol=1e-5)


def _nan(frame):
    frame["I:IB"] = np.nan
    return frame


def _fast(frame):
    start = pd.to_datetime(frame["time"].iloc[0])
    frame["time"] = [start + pd.Timedelta(seconds=i / 150) for i in range(len(frame))]
    return frame


def _words(frame):
    frame["B:IMINER"] = "high"
    return frame


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda f: f.drop(columns=["B:IMINER", "I:IB"]), "missing column B:IMINER, I:IB"),
        (lambda f: f.drop(columns=["B_VIMIN"]), "missing column B_VIMIN"),
        (lambda f: f.drop(columns=["time"]), "missing column time"),
        (_nan, "only 0 of 3000 rows are complete"),
        (_fast, "15 Hz"),
        (_words, "not a readable CSV"),
        (lambda f: f.iloc[::-1], "decreases"),
        (lambda f: f.assign(time="yesterday"), "neither timestamps nor seconds"),
    ],
)
def test_errors(path, change, message):
    with pytest.raises(UserError, match=message):
        recording.read(_edit(path, change), TICKS, need_set_point=True)


def test_a_header_that_is_no_text(path):
    path.write_bytes(b"\x85" + path.read_bytes()[1:])
    with pytest.raises(UserError, match="missing column time"):
        recording.read(path, TICKS, need_set_point=False)


def test_no_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        recording.read(tmp_path / "none.csv", TICKS, need_set_point=True)


def test_no_stretch_is_long_enough(path):
    config = ExaBoosterConfig(model="residual", recording=str(path), horizon=1900)
    with pytest.raises(UserError, match="without a gap"):
        make(config)


def test_copying_the_recording_reproduces_it(path, log):
    """A continuous agent that sends the recorded VIMIN sees the recorded errors; so does the shadow."""
    config = ExaBoosterConfig(
        name="ExaBoosterContinuous-v0", delta_max=0.5, model="residual", recording=str(path), bank_size=50
    )
    env, params = make(config)
    rows = log[0]
    step = jax.jit(env.step_env)
    for seed in range(3):
        _, state = env.reset_env(jax.random.key(seed), params)
        for _ in range(100):
            row = int(state.machine.row)
            vimin = rows[row + 1, 0] - channels.VIMIN_CENTRE
            action = jnp.array([(vimin - float(state.agent.vimin)) / 0.5])
            obs, state, _, _, info = step(jax.random.key(0), state, action, params)
            assert float(info["abs_error"]) == pytest.approx(abs(rows[row + 1, 1]), abs=1e-6)
            assert float(info["regulator_abs_error"]) == pytest.approx(abs(rows[row + 1, 1]), abs=1e-6)
        last = np.asarray(obs).reshape(-1, 5)
        np.testing.assert_allclose(last, channels.standardise(rows[row - 13 : row + 2]), atol=2e-3)


def test_the_start_is_the_recorded_one(path, log):
    env, params = make(ExaBoosterConfig(model="residual", recording=str(path), bank_size=7))
    starts = np.asarray(params.bank.machine.row)
    assert not any(start - 150 < GAP <= start + 101 for start in starts)
    window = np.asarray(params.bank.window[3]).reshape(-1, 5)
    expected = channels.standardise(log[0][starts[3] - 14 : starts[3] + 1])
    np.testing.assert_allclose(window, expected, atol=1e-3)
    # the action map is the recording's own, here near the generator's default
    np.testing.assert_allclose(env.default_params.deltas, actions.QUANTILE_30, atol=2.5e-3)


def test_replayed_plant_answers_actions(path):
    """Beyond the recording: a raised VIMIN raises the error by the plant's gain three ticks later."""
    config = ExaBoosterConfig(
        name="ExaBoosterContinuous-v0", delta_max=0.01, model="residual", recording=str(path), bank_size=5
    )
    env, params = make(config)
    _, state = env.reset_env(jax.random.key(0), params)
    raised = held = state
    for t in range(3):
        _, raised, *_ = env.step_env(jax.random.key(0), raised, jnp.array([float(t == 0)]), params)
        _, held, *_ = env.step_env(jax.random.key(0), held, jnp.array([0.0]), params)
    assert float(raised.agent.error - held.agent.error) == pytest.approx(0.033, abs=1e-5)
