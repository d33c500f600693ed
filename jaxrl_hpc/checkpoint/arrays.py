"""Plain arrays in a checkpoint.

Arrays up to BLOCK bytes go together into one piece, written at every save. Larger ones are cut into
blocks; all are hashed, only blocks whose hash differs from the previous checkpoint are written. So a
save reads every large array once (at memory speed) and writes what changed.

A data file that is mostly superseded, or one of too many, has its remaining blocks rewritten, which
bounds the space to about twice the live bytes and the number of files to MAX_FILES.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from jaxrl_hpc.checkpoint.blocks import DataFile, Piece, PieceReader, as_bytes, checksum
from jaxrl_hpc.checkpoint.leaves import Signature, empty, signature, to_host
from jaxrl_hpc.checkpoint.manifest import Manifest

BLOCK = 256 * 1024  # bytes
MAX_FILES = 16


def plan_arrays(
    leaves: dict[str, Any], base: Manifest | None, file: DataFile
) -> tuple[dict[str, Any], Piece]:
    """Queue what must be written; returns the manifest's `leaves` and `small`."""
    entries: dict[str, Any] = {}
    small: list[np.ndarray] = []
    small_size = 0
    large: dict[str, tuple[np.ndarray, list[str]]] = {}
    for path, leaf in leaves.items():
        shape, dtype, key = signature(leaf)
        entries[path] = {"shape": shape, "dtype": dtype, "key": key}
        data = as_bytes(to_host(leaf))
        if data.nbytes > BLOCK:
            large[path] = data, [checksum(data[i : i + BLOCK]) for i in range(0, data.nbytes, BLOCK)]
        else:
            entries[path]["at"] = [small_size, data.nbytes]
            small.append(data)
            small_size += data.nbytes
    kept = _unchanged(large, base)
    for path, (data, sums) in large.items():
        blocks = [data[i : i + BLOCK] for i in range(0, data.nbytes, BLOCK)]
        entries[path]["blocks"] = [
            kept.get((path, i)) or file.queue([block], sums[i]) for i, block in enumerate(blocks)
        ]
    return entries, file.queue(small)


def _unchanged(
    large: dict[str, tuple[np.ndarray, list[str]]], base: Manifest | None
) -> dict[tuple[str, int], Piece]:
    """Blocks that stay where they are, by (path, block number)."""
    if base is None:
        return {}
    same = {}
    for path, (data, sums) in large.items():
        for i, piece in enumerate(base["leaves"].get(path, {}).get("blocks", ())):
            length = min(BLOCK, data.nbytes - i * BLOCK)
            if i < len(sums) and piece[2:] == [length, sums[i]]:
                same[path, i] = piece
    live: Counter[str] = Counter()
    for piece in same.values():
        live[piece[0]] += piece[2]
    dense = {name for name, _ in live.most_common(MAX_FILES - 1) if 2 * live[name] >= base["files"][name]}
    return {where: piece for where, piece in same.items() if piece[0] in dense}


def read_arrays(manifest: Manifest, reader: PieceReader) -> dict[str, np.ndarray]:
    blob = np.empty(manifest["small"][2], np.uint8)
    reader.read(manifest["small"], [blob])
    arrays = {}
    for path, entry in manifest["leaves"].items():
        array = empty(Signature(tuple(entry["shape"]), entry["dtype"], None))
        data = as_bytes(array)
        if "at" in entry:
            start, length = entry["at"]
            data[:] = blob[start : start + length]
        else:
            for i, piece in enumerate(entry["blocks"]):
                reader.read(piece, [data[i * BLOCK : (i + 1) * BLOCK]])
        arrays[path] = array
    return arrays
