"""TensorBoard event files: the mean over seeds of every metric, against environment steps.

One curve per metric, `train/…` and `eval/…`; the single seeds are in the Parquet metrics.

Events are written synchronously. tensorboardX's own writer uses a thread: on a full disk that thread dies
with a traceback, and the run then waits for it forever.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from jaxrl_hpc.errors import file_named
from jaxrl_hpc.metrics.parquet import Row
from jaxrl_hpc.metrics.trackers import means


class TensorBoardWriter:
    """A metrics Writer. `resume_env_steps`: hide what an earlier process logged after that step."""

    def __init__(self, run_dir: str | Path, resume_env_steps: int | None = None) -> None:
        folder = Path(run_dir) / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)
        events = [Event(wall_time=time.time(), file_version="brain.Event:2")]
        if resume_env_steps is not None:
            start = SessionLog(status=SessionLog.SessionStatus.Value("START"))
            events.append(Event(wall_time=time.time(), step=resume_env_steps + 1, session_log=start))
        self._write(events)

    def append(self, rows: Sequence[Row]) -> None:
        now = time.time()
        self._write(
            [
                Event(wall_time=now, step=step, summary=scalar(tag, value))
                for step, values in means(rows).items()
                for tag, value in values.items()
            ]
        )

    def flush(self) -> None:
        """Events are on disk already."""

    def close(self) -> None:
        self._file.close()

    def _write(self, events: Sequence[Event]) -> None:
        with file_named(self._path):
            data = memoryview(b"".join(_record(event.SerializeToString()) for event in events))
            while data:  # a full disk takes a part of it first
                data = data[self._file.write(data) :]


def _record(data: bytes) -> bytes:
    """A TFRecord: length and data, each with its checksum."""
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]
