"""Every config in configs/ validates, matches the schema, and builds a program that traces."""

import json
from pathlib import Path

import jax
import jsonschema
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.runtime.build import build, hypers_of
from tests.tiers import quick

ROOT = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(p for p in ROOT.rglob("*.yaml") if p.parent.name != "sweeps")
SCHEMA = configs.json_schema()
# a program of the whole run, one with a simulator outside, and one that is several processes'
QUICK = [ROOT / f"{name}.yaml" for name in ("cartpole_dqn", "hopper_ppo", "workflows/cartpole_impala")]


def test_there_are_configs():
    assert {"cartpole_dqn", "acrobot_dqn", "breakout_dqn"} <= {p.stem for p in FILES}


@pytest.mark.parametrize("path", quick(FILES, QUICK), ids=lambda p: str(p.relative_to(ROOT).with_suffix("")))
def test_builds_here_and_for_cuda(path):
    data = configs.parse_yaml(path.read_text(), str(path))
    jsonschema.validate(data, SCHEMA)
    config = configs.load(path)
    parts = build(config)
    hypers = jax.tree.map(jax.numpy.float32, hypers_of(config))
    if parts.env.external:  # its programs call into this process, so that they cannot be exported
        state = jax.eval_shape(parts.workflow.init, jax.random.key(0), hypers)
        if parts.workflow.traceable:  # else the host makes its steps
            after, _ = jax.eval_shape(parts.workflow.step, state, jax.ShapeDtypeStruct((), "int32"))
            assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
                lambda x: (x.shape, x.dtype), state
            )
        parts.env.host.simulators.close()
    elif parts.workflow.traceable:
        state = jax.eval_shape(parts.workflow.init, jax.random.key(0), hypers)
        number = jax.ShapeDtypeStruct((), "int32")
        # running on a GPU is untested; its program can be made, without a call that only a CPU has
        exported = jax.export.export(jax.jit(parts.workflow.step), platforms=["cuda"])(state, number)
        text = exported.mlir_module()
        assert not [name for name in ("jaxrl", "cpu", "lapack") if f"custom_call @{name}" in text]
        count = len(jax.tree.leaves(state))
        assert [(x.shape, x.dtype) for x in exported.out_avals[:count]] == [
            (x.shape, x.dtype) for x in jax.tree.leaves(state)
        ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_says_what_it_is(path):
    comments = [line for line in path.read_text().splitlines() if line.startswith("# ")]
    assert [c for c in comments if "yaml-language-server" not in c], (
        f"{path} has no comment on budget and result"
    )


def test_schema_file_is_current():
    assert json.loads((ROOT / "schema.json").read_text()) == SCHEMA, (
        "run: jaxrl-hpc schema > configs/schema.json"
    )
