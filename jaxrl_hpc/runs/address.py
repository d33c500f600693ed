"""The address at which the learner of a run waits for actors, and the token to join it.

actors.json in the run directory: written as a whole, mode 0600 from the first byte on, removed when the
learner ends. A killed learner leaves it behind, with an address that no longer answers.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import stat
import uuid
from pathlib import Path
from typing import NamedTuple

import psutil

from jaxrl_hpc.checkpoint.blocks import sync_directory
from jaxrl_hpc.errors import UserError, file_named

NAME = "actors.json"

log = logging.getLogger(__name__)


class LearnerAddress(NamedTuple):
    """The content of the file."""

    hosts: tuple[str, ...]  # names and addresses of the learner's host, to be tried in this order
    port: int
    public_key: str
    token: str
    host: str
    pid: int

    def where(self) -> tuple[str, ...]:
        """Addresses to try from this host."""
        here = self.host == socket.gethostname()
        return ("127.0.0.1", *self.hosts) if here else self.hosts

    def __str__(self) -> str:
        return f"the learner, process {self.pid} on {self.host}, port {self.port}"


def new_token() -> str:
    return secrets.token_hex(32)


def own_hosts() -> tuple[str, ...]:
    """Names and addresses by which other hosts may reach this one."""
    names = [socket.gethostname(), socket.getfqdn()]
    for addresses in psutil.net_if_addrs().values():
        names += [a.address for a in addresses if a.family == socket.AF_INET and a.address != "127.0.0.1"]
    return tuple(dict.fromkeys(name for name in names if name and name != "localhost"))


def write_own(folder: Path, port: int, public_key: str, token: str) -> None:
    """The address of this process."""
    write(
        folder,
        LearnerAddress(own_hosts(), port, public_key, token, socket.gethostname(), os.getpid()),
    )


def write(folder: Path, address: LearnerAddress) -> None:
    """Only its owner can read it, at any time."""
    path = folder / NAME
    temporary = path.with_name(f"{NAME}.{uuid.uuid4().int}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with file_named(path), os.fdopen(handle, "w") as file:
            os.fchmod(handle, 0o600)  # whatever a default ACL says
            json.dump(address._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(folder)


def remove(folder: Path, token: str) -> None:
    """Delete this learner's own file; not that of a later one, nor one that cannot be read: the run still has
    to be saved."""
    try:
        found = read(folder)
        if found is not None and found.token == token:
            (folder / NAME).unlink(missing_ok=True)
    except (UserError, OSError) as error:
        log.warning("%s; it was not removed", error)


def read(folder: Path) -> LearnerAddress | None:
    """None if there is none."""
    path = folder / NAME
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would wait for a writer
    except FileNotFoundError:
        return None
    except PermissionError:
        raise UserError(f"{path} belongs to the owner of the run: only they can add actors") from None
    except OSError as error:
        what = "it is a link" if path.is_symlink() else error.strerror
        raise UserError(f"cannot read {path}: {what}") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise UserError(f"cannot read {path}: it is not a file")
    with file_named(path), os.fdopen(handle, "rb") as file:
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise UserError(
                f"{path} is not yours alone (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}): "
                "others may have read or changed it; start the learner again"
            )
        content = file.read(1 << 16)
    try:
        data = json.loads(content)
        found = LearnerAddress(**data)
        texts = (found.public_key, found.token, found.host, *found.hosts)
        right = all(isinstance(text, str) and len(text) < 256 and text.isprintable() for text in texts)
        right = right and isinstance(found.hosts, list)
        if not (right and type(found.port) is int and type(found.pid) is int and 0 < found.port < 65_536):
            raise ValueError
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"{path} is damaged: start the learner again") from None
    return found._replace(hosts=tuple(found.hosts))
