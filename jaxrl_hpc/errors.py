"""Errors that are the user's to fix: shown as one sentence, exit code 2, no traceback."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

ADVICE = {
    errno.ENOSPC: "; free some space, or write elsewhere",
    errno.EDQUOT: "; free some space, or write elsewhere",
    errno.EFBIG: "; raise the limit on file sizes (ulimit -f), or write elsewhere",
    errno.EMFILE: "; raise the limit on open files (ulimit -n)",
}


class UserError(Exception):
    """A mistake in a config, a command or a file, with a message that names it and the fix."""


def os_error_sentence(error: OSError) -> str:
    """The operating system's error as a sentence, with the file."""
    names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    what = error.strerror or str(error) or type(error).__name__
    return f"{names + ': ' if names else ''}{what}{ADVICE.get(error.errno or 0, '')}"


@contextlib.contextmanager
def os_errors_told() -> Iterator[None]:
    """Errors of the operating system become UserErrors. For commands, inside of a job's guard."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno is None:  # raised by a library for its own purposes: a traceback is more useful
            raise
        raise UserError(os_error_sentence(error)) from error


@contextlib.contextmanager
def file_named(path: object) -> Iterator[None]:
    """Adds the file's name to errors of reading and writing an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
