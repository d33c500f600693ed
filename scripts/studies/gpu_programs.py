"""What shipped programs would do on GPUs, seen without one: lowered for CUDA over a mesh that is not there.

    python scripts/studies/gpu_programs.py [--devices 4]

Every config of the workflow `sharded` whose environment is in the program is lowered as one program over all
devices of all processes, as `workflow.engine: jax` runs it. The table has the collectives of each program and
what it asks of the host, which must be nothing. Written into docs/gpus.md between two marks. Programs of
`fused` are for one device; tests lower all of them (tests/config/test_shipped_configs.py).
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.layout import DEVICE, Layout
from jaxrl_hpc.envs.external.simulator import ExternalConfig
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.workflows.sharded import workflow as sharded

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gpus.md"
BEGIN, END = "<!-- programs: scripts/studies/gpu_programs.py -->", "<!-- end of programs -->"
COLLECTIVES = re.compile(r"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute)")
CALLS = re.compile(r"custom_call @([\w.$]+)")
HOST = re.compile(r"callback|infeed|outfeed|stablehlo\.(?:send|recv)|mpi|jaxrl|lapack|cpu")


class Program(NamedTuple):
    """A program for CUDA."""

    collectives: dict[str, int]
    calls: dict[str, int]  # of kernels that are not XLA's own
    host: list[str]  # what it would ask of the host
    messages: list[tuple[str, int, int]]  # of an iteration: kind, bytes of a shard, times


class ImaginedLayout(Layout):
    """Devices that only have a number."""

    @property
    def mesh(self) -> Mesh:
        mesh: Any = AbstractMesh((len(self.program_devices),), (DEVICE,))
        return mesh


def read(text: str, messages: list[tuple[str, int, int]]) -> Program:
    calls = dict(Counter(CALLS.findall(text)))
    host = sorted({line.strip()[:100] for line in text.splitlines() if HOST.search(_operation(line))})
    return Program(dict(Counter(COLLECTIVES.findall(text))), calls, host, messages)


def _operation(line: str) -> str:
    """The operation of a line, and what it calls."""
    found = re.search(r'"?(stablehlo\.[a-z_]+|call)"?\b(?: @[\w.$]+)?', line)
    return found[0] if found else ""


def lower_sharded(config: configs.Config, devices: int) -> Program:
    """The chunk of a sharded run over so many devices, two to a process."""
    here = jax.local_devices()[0]
    layout = ImaginedLayout(
        config.workflow.resources().shards, devices // 2, 0, (here,) * 2, (here,) * devices
    )
    with mock.patch.object(sharded, "make_layout", lambda *_: layout):
        flow: Any = build(config).workflow
    hypers = jax.tree.map(jnp.float32, hypers_of(config))
    numbers = jnp.arange(layout.shards, dtype=jnp.int32)
    state = jax.eval_shape(lambda k, h: flow._init(k, h, numbers), jax.random.key(0), hypers)
    names, messages = flow.dry_run(state)
    sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
    traced = flow._step.jitted.trace(state, sums, jax.ShapeDtypeStruct((), jnp.int32))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return read(text, [(m.kind, 4 * m.length, m.times) for m in messages])


def shipped() -> list[str]:
    """Configs of `sharded` whose environments are part of the program."""
    files = sorted((ROOT / "configs").rglob("*_sharded.yaml"))
    named = [str(path.relative_to(ROOT / "configs").with_suffix("")) for path in files]
    return [name for name in named if not isinstance(configs.load(name).env, ExternalConfig)]


def table(devices: int) -> list[str]:
    lines = [
        f"| program | over {devices} devices | exchanged in an iteration | other kernels | on the host |",
        "|---|---|---|---|---|",
    ]

    def row(name: str, program: Program) -> str:
        used = ", ".join(f"{n} {kind}" for kind, n in program.collectives.items()) or "none"
        sent = ", ".join(f"{times} × {kind} of {size:,} bytes" for kind, size, times in program.messages)
        calls = ", ".join(f"`{call}`" for call in program.calls) or "none"
        return (
            f"| `{name}` | {used} | {sent or 'nothing'} | {calls} | {'; '.join(program.host) or 'nothing'} |"
        )

    return [*lines, *(row(name, lower_sharded(configs.load(name), devices)) for name in shipped())]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=4)
    options = parser.parse_args()
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text("\n".join([before + BEGIN, "", *table(options.devices), "", END + after]))
    print(f"wrote the table into {PAGE}")


if __name__ == "__main__":
    main()
