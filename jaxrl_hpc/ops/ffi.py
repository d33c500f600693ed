"""Compiled libraries of foreign functions for CPUs (setup.py makes them): loading and registering."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import jax


def register(library: Path, targets: Mapping[str, str]) -> bool:
    """Register symbols of the library, `targets` being name -> symbol; False if it is missing."""
    try:
        loaded = ctypes.cdll.LoadLibrary(str(library))
    except OSError:
        return False
    for name, symbol in targets.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, symbol)), platform="cpu")
    return True
