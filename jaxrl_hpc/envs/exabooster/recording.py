"""Recordings in BOOSTR's CSV format: reading, gap masking, and replay of their residuals.

`read` follows EXARL: take N rows, inf → NaN, drop incomplete rows, shift B:VIMIN by −1 (the value logged at
t+1 answers the error at t), drop incomplete rows and duplicates. Unlike EXARL it tracks missing ticks, so
that no window spans a gap.

Residual replay is the recommended use of a recording. With u = B:VIMIN − B_VIMIN as logged (u_{t+1} = v_t),

    r_t = e_{t+1} − a e_t − 10 (g2 u_{t−1} + g3 u_{t−2})

is what the plant model does not explain. Replayed under other actions it predicts what would have happened;
an agent that repeats the recorded actions reproduces the recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.csv
from flax import struct

from jaxrl_hpc.envs.exabooster.channels import (
    MAXIMUM,
    MINIMUM,
    NAMES,
    SET_POINT_NAME,
    TICK_SECONDS,
    VIMIN_CENTRE,
)
from jaxrl_hpc.envs.exabooster.generator import Plant, Signals
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Array

MAX_GAP_SECONDS = 0.1
LOOK_BACK = 150  # EXARL's window
START = np.datetime64("2020-03-10T05:00:00", "us")


class Recording(NamedTuple):
    """A cleaned log of n ticks."""

    seconds: np.ndarray  # [n] float64
    rows: np.ndarray  # [n, 5] float64, in the order of NAMES, B:VIMIN as logged (sent before the row's error)
    vimin_next: np.ndarray  # [n] float64 B:VIMIN shifted by −1: sent after the row's error
    set_point: np.ndarray | None  # [n] float64 B_VIMIN
    joined: np.ndarray  # [n − 1] bool: rows i and i + 1 are neighbouring ticks


class Scaling(NamedTuple):
    """Min–max scaling per channel."""

    minimum: np.ndarray  # [5]
    maximum: np.ndarray  # [5]

    def span(self) -> np.ndarray:
        return self.maximum - self.minimum


EXARL_SCALING = Scaling(MINIMUM, MAXIMUM)


@struct.dataclass
class RecordedInputs:
    """The place of an episode in a recording."""

    row: Array  # [] int32


@struct.dataclass
class Residuals:
    """A recording as the environment replays it. All leaves [n]; VIMIN values relative to VIMIN_CENTRE."""

    residual: Array  # r_t
    inputs: Array  # u_t
    set_point: Array  # B_VIMIN
    rows: Array  # [n, 3] LINFRQ, IB, MDAT40


def write(
    path: Path | str, rows: np.ndarray, set_point: np.ndarray, seconds: np.ndarray | None = None
) -> None:
    """Save rows [n, 5] and B_VIMIN [n] as a CSV in BOOSTR's format."""
    if seconds is None:
        seconds = np.arange(len(rows)) * TICK_SECONDS
    time = START + np.round(seconds * 1e6).astype("timedelta64[us]")
    columns = {"time": pa.array(time), "file": pa.array(["generated"] * len(rows))}
    columns |= {name: pa.array(np.round(rows[:, i], 6)) for i, name in enumerate(NAMES)}
    columns[SET_POINT_NAME] = pa.array(np.round(set_point, 6))
    pyarrow.csv.write_csv(pa.table(columns), str(path))


def read(path: Path | str, max_rows: int, need_set_point: bool) -> Recording:
    """The first rows of a BOOSTR CSV, cleaned; UserError if the file is invalid."""
    wanted = [*NAMES, *([SET_POINT_NAME] if need_set_point else [])]
    seconds, values = _columns(Path(path), wanted, max_rows)
    values[~np.isfinite(values)] = np.nan
    whole = np.isfinite(values).all(axis=1) & np.isfinite(seconds)
    if whole.sum() < LOOK_BACK:
        raise UserError(
            f"recording {path}: only {int(whole.sum())} of {len(values)} rows are complete; "
            f"at least {LOOK_BACK} are needed without NaN in {', '.join(wanted)}"
        )
    seconds, values = seconds[whole], values[whole]
    seconds, values, following = seconds[:-1], values[:-1], values[1:, 0]

    key = np.column_stack([seconds, following, values[:, 1:5]])
    first = np.sort(np.unique(key, axis=0, return_index=True)[1])
    seconds, values, following = seconds[first], values[first], following[first]

    step = np.diff(seconds)
    if (step < 0).any():
        raise UserError(
            f"recording {path}: column time decreases at row {int(np.argmax(step < 0)) + 1}; sort it"
        )
    typical = float(np.median(step))
    if not abs(typical / TICK_SECONDS - 1) < 0.1:
        raise UserError(
            f"recording {path}: rows are {typical:.4f} s apart, not {TICK_SECONDS:.4f} s (15 Hz); resample it"
        )
    joined = (step <= MAX_GAP_SECONDS) & (step > 0.5 * TICK_SECONDS)
    return Recording(seconds, values[:, :5], following, values[:, 5] if need_set_point else None, joined)


def _columns(path: Path, wanted: list[str], max_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds [n] and values [n, columns] of the first rows."""
    if not path.is_file():
        raise UserError(f"recording {path}: no such file; give the path of a CSV in BOOSTR's format")
    options = pyarrow.csv.ConvertOptions(
        include_columns=["time", *wanted],
        column_types={"time": pa.string()} | dict.fromkeys(wanted, pa.float64()),
        null_values=["", "NaN", "nan", "NA", "null"],
        strings_can_be_null=True,
    )
    batches, rows = [], 0
    try:
        with pyarrow.csv.open_csv(str(path), convert_options=options) as reader:
            for batch in reader:
                batches.append(batch)
                rows += batch.num_rows
                if rows >= max_rows:  # the real file has 620 MB
                    break
    except (pa.ArrowKeyError, KeyError) as error:
        with path.open(errors="replace") as file:
            present = file.readline().strip().split(",")
        missing = [name for name in ["time", *wanted] if name not in present]
        raise UserError(f"recording {path}: missing column {', '.join(missing)}") from error
    except pa.ArrowInvalid as error:
        raise UserError(f"recording {path}: not a readable CSV in BOOSTR's format ({error})") from error
    table = pa.Table.from_batches(batches, schema=reader.schema).slice(0, max_rows).combine_chunks()
    values = np.column_stack([table[name].to_numpy(zero_copy_only=False) for name in wanted]).astype(
        np.float64
    )
    return _seconds(path, table["time"].combine_chunks()), values


def _seconds(path: Path, time: pa.Array) -> np.ndarray:
    """Timestamps (with or without zone) or UTC seconds -> float64 seconds, NaN where missing."""
    for kind in (pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            parsed = time.cast(kind)
        except pa.ArrowInvalid:
            continue
        if kind == pa.float64():
            return parsed.to_numpy(zero_copy_only=False)
        # microseconds since 1970 are whole numbers of a float64, nanoseconds are not
        microseconds = (
            parsed.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()).cast(pa.float64())
        )
        return microseconds.to_numpy(zero_copy_only=False) / 1e6
    raise UserError(f"recording {path}: column time holds neither timestamps nor seconds, e.g. {time[0]}")


def scaling(recording: Recording) -> Scaling:
    """EXARL's min–max of the rows in use, VIMIN shifted."""
    rows = shifted_rows(recording).astype(np.float32)
    return Scaling(rows.min(axis=0), rows.max(axis=0))


def shifted_rows(recording: Recording) -> np.ndarray:
    """[n, 5] with VIMIN the value sent after the row's error: what a model of the next tick is given."""
    return np.column_stack([recording.vimin_next, recording.rows[:, 1:]])


def window_ends(joined: np.ndarray, before: int, after: int) -> np.ndarray:
    """Rows t such that t − before … t + after are neighbouring ticks."""
    broken = np.concatenate([[0], np.cumsum(~joined)])  # [n] breaks up to each row
    ends = np.arange(before, len(broken) - after)
    return ends[broken[ends + after] == broken[ends - before]]


def residuals(recording: Recording, plant: Plant) -> Residuals:
    """Residuals of the plant model; rows 0 and 1, and those next to a gap, are never replayed."""
    assert recording.set_point is not None
    error, u = recording.rows[:, 1], recording.rows[:, 0] - recording.set_point
    residual = np.zeros(len(error))
    explained = plant.pole * error[2:-1] + 10 * (plant.gain_2 * u[1:-2] + plant.gain_3 * u[:-3])
    residual[2:-1] = error[3:] - explained
    return Residuals(
        residual=jnp.asarray(residual, jnp.float32),
        inputs=jnp.asarray(u, jnp.float32),
        set_point=jnp.asarray(recording.set_point - VIMIN_CENTRE, jnp.float32),
        rows=jnp.asarray(recording.rows[:, 2:], jnp.float32),
    )


def replay(place: RecordedInputs, data: Residuals) -> tuple[RecordedInputs, Signals, Array, Array]:
    """One recorded tick: the next place, its signals, the set point that v refers to, and the v that the
    recorded regulator sent. The change of the set point is part of the residual."""
    following = place.row + 1
    zero = jnp.zeros(())
    linac, current, mdat40 = (data.rows[following, i] for i in range(3))
    signals = Signals(data.residual[place.row], zero, zero, linac, current, mdat40)
    return RecordedInputs(following), signals, data.set_point[following], data.inputs[following]
