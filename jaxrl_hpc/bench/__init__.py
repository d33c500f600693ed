"""Measuring speed: ours and other libraries on the same work, in one interleaved run."""
