"""Algorithms as pure functions: each module has one Config and one make()."""
