"""Compiled libraries of foreign functions for CPUs (setup.py makes them): loading and registering."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import jax


def register(library: Path, targets: Mapping[str, str]) -> bool:
    """Make symbols of the library known, `targets` being name -> symbol; False: it is not there."""
    try:
        loaded = ctypes.cdll.LoadLibrary(str(library))
    except OSError:
        return False
    for name, symbol in targets.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, symbol)), platform="cpu")
    return True
