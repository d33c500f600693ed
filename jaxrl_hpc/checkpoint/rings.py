"""Rings in a checkpoint: only rows written since the previous one.

Rows are counted from the beginning of the run (`Ring.written`), so a segment is an interval
[start, stop) of that count, stored leaf after leaf in one piece. A ring with S slots needs the rows
[written - S, written); segments older than that are dropped. So that their number stays bounded,
FANOUT trailing segments of the same magnitude are replaced by one, written from memory (the rows are
still in the ring): every row is written about log_FANOUT(S / rows per save) times in all.

Slots that were never written hold one and the same row, which is stored once.
`Ring.written` may have leading axes (seeds, shards) that the leaves share: each is a lane of its own.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl_hpc.checkpoint.blocks import DataFile, PieceReader, as_bytes
from jaxrl_hpc.checkpoint.leaves import Signature, empty, is_key, ring_leaves, signature, to_host
from jaxrl_hpc.types import Ring

FANOUT = 8
Segment = list[Any]  # [start, stop, piece]


def plan_ring(
    path: str, ring: Ring, base: dict[str, Any] | None, rows_file: DataFile, small_file: DataFile
) -> dict[str, Any]:
    """Queue the new rows; returns the ring's entry in the manifest."""
    written = np.asarray(ring.written)
    leaves = ring_leaves(ring)
    signatures = {name: signature(leaf) for name, leaf in leaves.items()}
    depth = written.ndim
    slots = {s.shape[depth] for s in signatures.values()}
    if (
        len(slots) != 1
        or 0 in slots
        or not written.size
        or any(s.shape[:depth] != written.shape for s in signatures.values())
    ):
        raise ValueError(f"state{path}: the leaves of a Ring must all be [*written.shape, slots > 0, …]")
    entry: dict[str, Any] = {
        "lead": list(written.shape),
        "slots": slots.pop(),
        "written": written.dtype.name,
        "leaves": {name: [list(s.shape), s.dtype, s.key] for name, s in signatures.items()},
    }
    comparable = base is not None and all(base[k] == entry[k] for k in ("lead", "slots", "leaves"))
    previous = base["lanes"] if base is not None and comparable else [None] * written.size
    views = [_lane_reader(leaf, depth) for leaf in leaves.values()]
    entry["lanes"] = [
        _plan_lane(int(written[lane]), entry["slots"], old, lane, views, rows_file, small_file)
        for lane, old in zip(np.ndindex(written.shape), previous, strict=True)
    ]
    return entry


def _plan_lane(
    total: int,
    slots: int,
    old: Any,
    lane: tuple[int, ...],
    views: list[Any],
    rows_file: DataFile,
    small_file: DataFile,
) -> dict[str, Any]:
    oldest = max(0, total - slots)
    segments: list[Segment] = []
    start = oldest
    if old is not None and old["written"] <= total:
        segments = [segment for segment in old["segments"] if segment[1] > oldest]
        start = max(old["written"], oldest)
    if start < total:
        start = max(oldest, _merge(segments, start, total))
        spans = [(start % slots, start % slots + total - start)]
        if spans[0][1] > slots:
            spans = [(spans[0][0], slots), (0, spans[0][1] - slots)]
        pieces = [view(lane, *span) for view in views for span in spans]
        segments.append([start, total, rows_file.queue(pieces)])
    blank = small_file.queue([view(lane, slots - 1, slots) for view in views]) if total < slots else None
    return {"written": total, "segments": segments, "blank": blank}


def _merge(segments: list[Segment], start: int, stop: int) -> int:
    """Take trailing segments that the new one shall replace off the list; returns its start."""
    while True:
        tier = _tier(stop - start)
        tail = 0
        while tail < len(segments) and _tier(segments[-1 - tail][1] - segments[-1 - tail][0]) <= tier:
            tail += 1
        if tail < FANOUT - 1:
            return start
        start = segments[-tail][0]
        del segments[-tail:]


def _tier(rows: int) -> int:
    return (rows.bit_length() - 1) // (FANOUT.bit_length() - 1)


def _lane_reader(leaf: Any, depth: int) -> Any:
    """(lane, first slot, end slot) -> bytes of these rows; from an accelerator only they are fetched."""
    on_host = not isinstance(leaf, jax.Array) or all(device.platform == "cpu" for device in leaf.devices())
    source: Any = to_host(leaf) if on_host or is_key(leaf) else leaf

    def rows(lane: tuple[int, ...], first: int, end: int) -> np.ndarray:
        return as_bytes(np.asarray(source[(*lane[:depth], slice(first, end))]))

    return rows


def read_ring(entry: dict[str, Any], reader: PieceReader) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The leaves by name and `written`."""
    lead, slots = tuple(entry["lead"]), entry["slots"]
    arrays = {
        name: empty(Signature(tuple(shape), dtype, None))
        for name, (shape, dtype, _) in entry["leaves"].items()
    }
    written = np.zeros(lead, entry["written"])
    count = len(entry["lanes"])
    rows = [as_bytes(a).reshape(count, slots, a.nbytes // (count * slots)) for a in arrays.values()]
    for index, (lane, state) in enumerate(zip(np.ndindex(lead), entry["lanes"], strict=True)):
        written[lane] = state["written"]
        views = [array[index] for array in rows]  # [slots, bytes of a row]
        if state["blank"] is not None:
            blank = [np.empty(view.shape[1], np.uint8) for view in views]
            reader.read(state["blank"], blank)
            for view, row in zip(views, blank, strict=True):
                if row.any():  # the arrays are zeros already
                    view[state["written"] :] = row
        for start, stop, piece in state["segments"]:  # oldest first: later rows win
            first, end = start % slots, start % slots + stop - start
            spans = [(first, end)] if end <= slots else [(first, slots), (0, end - slots)]
            reader.read(piece, [view[a:b].reshape(-1) for view in views for a, b in spans])
    return arrays, written
