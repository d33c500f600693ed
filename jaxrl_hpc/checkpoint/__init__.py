"""States of runs on disk (checkpointer.py)."""

DAMAGED = "damaged"  # in a folder of checkpoints: files that could not be read
