"""Ranks import this package with the modules that they run: see tests/compiling.py."""

from tests import compiling

compiling.share()
