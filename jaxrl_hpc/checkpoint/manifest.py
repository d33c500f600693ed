"""The manifest of a checkpoint: its contents and their places. Written last, as the commit mark.

Two lines of JSON: a header (format, version, checksum of the body) and the body:

    step, sequence, host     the caller's counters
    previous                 sequence number of the checkpoint before it in the history of its state, or null
    leaves  {path: {dtype, shape, key, at | blocks}}     plain arrays, see `arrays.py`
    rings   {path: {slots, lead, leaves, lanes}}         replay rings, see `rings.py`
    small   the piece with all small arrays
    files   {name: size} of every data file it needs
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxrl_hpc.checkpoint.blocks import BrokenCheckpoint, Piece, checksum, write_atomically

FORMAT = "jaxrl-hpc checkpoint"
VERSION = 1
OURS = re.compile(r"(\d{8})\.(manifest|rows|arrays)(\.\d+\.tmp)?")

Manifest = dict[str, Any]


def manifest_path(directory: Path, sequence: int) -> Path:
    return directory / f"{sequence:08d}.manifest"


def sequences(directory: Path, kind: str = "manifest") -> list[int]:
    """Sequence numbers of the committed manifests (or of all our files with kind="all"), in order."""
    if not directory.is_dir():
        return []
    found = [match for path in directory.iterdir() if (match := OURS.fullmatch(path.name))]
    if kind != "all":
        found = [match for match in found if match[2] == kind and not match[3]]
    return sorted({int(match[1]) for match in found})


def pieces_of(manifest: Manifest) -> Iterator[Piece]:
    """All pieces of data files that a manifest refers to."""
    yield manifest["small"]
    for entry in manifest["leaves"].values():
        yield from entry.get("blocks", ())
    for ring in manifest["rings"].values():
        for lane in ring["lanes"]:
            yield from (segment[2] for segment in lane["segments"])
            if lane["blank"]:
                yield lane["blank"]


def write_manifest(directory: Path, manifest: Manifest) -> int:
    """Commit; returns the bytes written."""
    body = json.dumps(manifest, separators=(",", ":")).encode()
    header = {"format": FORMAT, "version": VERSION, "byteorder": sys.byteorder, "checksum": checksum(body)}
    content = json.dumps(header).encode() + b"\n" + body + b"\n"
    write_atomically(manifest_path(directory, manifest["sequence"]), content)
    return len(content)


def read_manifest(directory: Path, sequence: int, check_files: bool = True) -> Manifest:
    """Read and check a manifest and the presence and size of every file it needs."""
    path = manifest_path(directory, sequence)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BrokenCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    head, _, body = content.partition(b"\n")
    try:
        header = json.loads(head)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise BrokenCheckpoint(f"{path} is not a checkpoint manifest of jaxrl-hpc")
    if header.get("version") != VERSION:
        raise BrokenCheckpoint(
            f"{path} has format version {header.get('version')}, this program reads {VERSION}"
        )
    if header.get("byteorder") != sys.byteorder:
        raise BrokenCheckpoint(f"{path} was written on a {header.get('byteorder')}-endian machine")
    if not body.endswith(b"\n") or checksum(body[:-1]) != header.get("checksum"):
        raise BrokenCheckpoint(f"{path} is cut short or damaged: wrong checksum")
    manifest: Manifest = json.loads(body)
    for name, size in manifest["files"].items() if check_files else ():
        file = directory / name
        actual = file.stat().st_size if file.is_file() else None
        if actual is None:
            raise BrokenCheckpoint(f"{file} is missing")
        if actual != size:
            raise BrokenCheckpoint(f"{file} has {actual} bytes instead of {size}")
    return manifest
