"""jaxrl_hpc: accelerator-first, exactly reproducible reinforcement learning in JAX."""

__version__ = "0.2.0"
