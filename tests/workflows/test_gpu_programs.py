"""What programs would do on GPUs, as far as it can be seen without one: collectives inside the program,
nothing on the host, no transfer inside a chunk, and states that are passed on in place."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.train import lanes_of, make_runner
from tests import small
from tests.tiers import quick

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location(
    "gpu_programs", ROOT / "scripts" / "studies" / "gpu_programs.py"
)
gpu_programs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_programs)
SHARDED = gpu_programs.shipped()


@pytest.mark.parametrize("name", quick(SHARDED, ["workflows/cartpole_dqn_sharded"]))
def test_collectives_are_inside_the_program_and_nothing_is_on_the_host(name):
    program = gpu_programs.lower_sharded(configs.load(name), 4)
    assert not program.host
    kinds = [kind for kind, _, _ in program.messages]
    exact = configs.load(name).workflow.deterministic
    gathered = kinds.count("gather") + (kinds.count("add") if exact else 0)
    # loops appear once in the text; one more gather reports the chunk
    assert program.collectives.get("all_gather", 0) == gathered + 1
    assert program.collectives.get("all_reduce", 0) == len(kinds) - gathered


def test_there_are_sharded_configs():
    assert len(SHARDED) == 3


def test_the_reader_sees_calls_to_the_host():
    def asks(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x)

    assert gpu_programs.read(jax.jit(asks).lower(jnp.float32(0)).as_text(), []).host


@pytest.mark.parametrize("workflow", ["fused", "sharded"])
def test_a_chunk_moves_nothing_and_keeps_its_buffers(workflow):
    """Only what the host asks for explicitly crosses: the number of iterations before, metrics after."""
    sizes = {"batch_size": 24} if workflow == "sharded" else {}
    flow = {"name": workflow, "num_envs": 24}
    config = small.config(agent=sizes, replay={"capacity": 2400, "min_size": 96}, workflow=flow)
    runner = make_runner(config, build(config), lanes_of(config))
    if workflow == "fused":
        runner.compile()
    runner.initialise()
    before = runner.states[0]
    with jax.transfer_guard("disallow"):
        metrics = runner.step(3)
        jax.block_until_ready(metrics)
    donated = [leaf.is_deleted() for leaf in jax.tree.leaves(before)]
    assert all(donated), f"{donated.count(False)} of {len(donated)} buffers were copied"
