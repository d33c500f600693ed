"""Pieces of bytes in append-only data files, each with its checksum.

A save queues pieces (which fixes their offsets), then writes each file once and syncs it. Nothing is
ever changed in place, so whatever an older checkpoint refers to stays as it was.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from jaxrl_hpc.errors import UserError, file_named

Piece = list[
    Any
]  # [file name, offset, length, checksum or None until written]; a list because JSON has no tuples


CHECKED_AT_ONCE = 2**22  # bytes


class NoGoodCheckpoint(UserError):
    """There are checkpoints, but none of them can be read."""


class BrokenCheckpoint(Exception):
    """A file of a checkpoint is missing, truncated, altered or not ours. The message names it."""


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The memory of a contiguous array as uint8 [bytes], without a copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def checksum(*buffers: Any) -> str:
    digest = xxhash.xxh3_128()
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()


class DataFile:
    """A file of pieces to be written by one save."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._queue: list[tuple[Piece, list[np.ndarray]]] = []

    def queue(self, buffers: Iterable[np.ndarray], known_checksum: str | None = None) -> Piece:
        """Add one piece made of these byte arrays; its checksum is filled in by write()."""
        parts = list(buffers)
        piece: Piece = [self.path.name, self.size, sum(part.nbytes for part in parts), known_checksum]
        self._queue.append((piece, parts))
        self.size += piece[2]
        return piece

    def write(self) -> None:
        """Write, sync and read back all pieces; the file does not count until a manifest refers to it."""
        if not self._queue:
            return
        with file_named(self.path), open(self.path, "xb") as file:
            for piece, parts in self._queue:
                piece[3] = piece[3] or checksum(*parts)
                for part in parts:
                    file.write(part.data)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read back from the disk
        with PieceReader(self.path.parent) as reader:
            for piece, _ in self._queue:
                reader.check(piece)
        self._queue.clear()


class PieceReader:
    """Reads pieces into arrays and checks them. Keeps files open while in use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> PieceReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def read(self, piece: Piece, into: Sequence[np.ndarray]) -> None:
        """Fill the uint8 arrays one after the other from the piece."""
        name, offset, length, expected = piece
        if sum(part.nbytes for part in into) != length:
            raise BrokenCheckpoint(f"{self._directory / name}: a piece has {length} bytes, which do not fit")
        file = self._at(name, offset)
        try:
            whole = all(not part.nbytes or file.readinto(part.data) == part.nbytes for part in into)  # type: ignore[attr-defined]
        except OSError as error:
            raise self._unreadable(name, error) from error
        if not whole:
            raise BrokenCheckpoint(f"{self._directory / name} is cut short")
        if checksum(*into) != expected:
            raise BrokenCheckpoint(f"{self._directory / name} is damaged: wrong checksum at byte {offset}")

    def check(self, piece: Piece) -> None:
        """Compare a piece with its checksum, whatever its size."""
        name, offset, length, expected = piece
        digest = xxhash.xxh3_128()
        file = self._at(name, offset)
        while length:
            try:
                part = file.read(min(length, CHECKED_AT_ONCE))
            except OSError as error:
                raise self._unreadable(name, error) from error
            if not part:
                raise BrokenCheckpoint(f"{self._directory / name} is cut short")
            digest.update(part)
            length -= len(part)
        if digest.hexdigest() != expected:
            raise BrokenCheckpoint(f"{self._directory / name} is damaged: wrong checksum at byte {offset}")

    def _at(self, name: str, offset: int) -> BinaryIO:
        try:
            if name not in self._files:
                self._files[name] = open(self._directory / name, "rb")  # noqa: SIM115
            self._files[name].seek(offset)
        except OSError as error:
            raise self._unreadable(name, error) from error
        return self._files[name]

    def _unreadable(self, name: str, error: OSError) -> BrokenCheckpoint:
        return BrokenCheckpoint(f"{self._directory / name} cannot be read: {error.strerror}")


def sync_directory(directory: Path) -> None:
    """Make created and renamed names durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole: a reader or a crash sees the old content or the new, never a part."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().int}.tmp")  # process numbers repeat over machines
    try:
        with file_named(path), open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk must not fill up with partial files
        raise
    sync_directory(path.parent)
