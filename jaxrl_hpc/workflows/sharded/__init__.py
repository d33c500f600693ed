"""The fused iteration over all devices of a process and all ranks of a job, in step.

    shard s of S:   unroll [T, B/S] → add to its replay → K × ( its part of a batch → gradient ) ┐
                         ↑───────────── parameters, the same everywhere ←── apply ←── mean of all ┘

Environment copies, replay, keys and batch are divided into S logical shards; ranks and devices hold shards,
and their assignment does not affect the result (`comm/layout.py`). Parameters are the same everywhere: each
device applies the same mean. Ranks come from the launcher: `mpirun -n N jaxrl-hpc train …` or `srun`. Between
them, `engine: mpi` has mpi4jax inside programs of one device each, `engine: jax` one program over the devices
of all (`runtime/engine.py` chooses).
"""

from jaxrl_hpc.workflows.sharded.workflow import Config as Config
from jaxrl_hpc.workflows.sharded.workflow import make as make
