"""A rank's memory does not grow with what it returns to the system."""

import pytest

from tests.mpi import launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]

RETURN_MEMORY = """
import mmap
from pathlib import Path

from jaxrl_hpc.comm import ranks
from tests.telling import tell

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

def return_memory(times):
    for _ in range(times):
        mmap.mmap(-1, 2**16).close()

job = ranks.world()
job.gather(0)
return_memory(1_000)
early = resident()
return_memory(50_000)
grown = job.gather((resident() - early) / 2**20)
if job.first:
    tell({"grown": grown})
"""


def test_ranks_do_not_grow_with_memory_that_they_return(tmp_path):
    """UCX kept a note of 144 bytes for each time: 7 MiB here, 1 % of a learner in twenty minutes."""
    script = tmp_path / "ranks.py"
    script.write_text(RETURN_MEMORY)
    status, output = launch.run(2, str(script))
    assert status == 0, output
    (found,) = launch.results(output)
    assert max(found["grown"]) < 1.0, found
