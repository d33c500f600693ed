"""Exports a run's policy to a folder that works without this package.

    policy.py             the loader: needs only jax, numpy and flatbuffers
    metadata.json         spaces, names and shapes, where the policy comes from
    weights.npz           parameters and normalisers, and the memory at the start of an episode
    greedy.stablehlo      the program: StableHLO in jax.export's format, for any batch size
    sample.stablehlo      the same with actions drawn at random; only of agents that learn a distribution

    export_run("runs/cartpole_dqn", "my_policy")

Programs take their weights as an argument, so the exported weights equal the trained ones to the bit.
Unneeded parts (critic, exploration, memory of rewards) are left out.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.export import loader
from jaxrl_hpc.export.check import check
from jaxrl_hpc.export.program import PolicyFunctions, PolicyProgram
from jaxrl_hpc.runs.directory import RunDirectory, code_version
from jaxrl_hpc.runtime.evaluation import load_run
from jaxrl_hpc.types import EnvSpec

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export_run(
    run_dir: str | Path, out: str | Path | None = None, seed: int | None = None, *, trust: bool = False
) -> dict[str, Any]:
    """Write the policy of one seed (the run's first by default); returns what metadata.json says."""
    run = RunDirectory.existing(run_dir)
    folder = Path(out) if out else run.path / "export"
    _check_free(folder)
    config, runner = load_run(run.path, trust=trust)
    known = [lane.seed for lane in runner.lanes]
    seed = known[0] if seed is None else seed
    if seed not in known:
        raise UserError(f"--seed: {run.path} has no seed {seed}; it has {', '.join(map(str, known))}")
    parts: Any = runner.parts
    acting = PolicyFunctions(parts.agent, runner.actor(known.index(seed)), parts.env.spec)
    programs = {"greedy": PolicyProgram(acting, greedy=True)}
    if parts.agent.stochastic:
        programs["sample"] = PolicyProgram(acting, greedy=False)
    settings: Any = config
    origin = {
        "env": settings.env.name,
        "agent": settings.agent.name,
        "seed": seed,
        "env_steps": runner.counters()["env_steps"],
        "jaxrl_hpc": code_version()["version"],
        "jax": jax.__version__,
    }
    metadata = _write(folder, programs, parts.env.spec, origin)
    check(folder, acting)
    return metadata


def _check_free(folder: Path) -> None:
    """A new folder, or an earlier export, which is replaced."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out: {folder} is a file; choose another folder")
    if folder.is_dir() and any(folder.iterdir()):
        try:
            loader.read_metadata(folder)
        except ValueError:
            raise UserError(
                f"--out: {folder} is not empty and not an exported policy; choose another"
            ) from None


def _write(
    folder: Path, programs: dict[str, PolicyProgram], spec: EnvSpec, origin: dict[str, Any]
) -> dict[str, Any]:
    weights: dict[str, np.ndarray] = {}
    described = {}
    contents = {name: program.serialise(PLATFORMS) for name, program in programs.items()}
    for name, program in programs.items():
        weights |= {f"weights/{key}": value for key, value in program.weights.items()}
        weights |= {f"carry/{key}": value for key, value in program.carry.items()}
        described[name] = {
            "file": f"{name}.stablehlo",
            "sha256": hashlib.sha256(contents[name]).hexdigest(),
            "weights": list(program.weights),
            "carry": list(program.carry),
            "platforms": list(PLATFORMS),
        }
    metadata = {
        "format": loader.FORMAT,
        "version": loader.VERSION,
        **origin,
        "observation": _observation_space(spec),
        "action": _action_space(spec),
        "programs": described,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _earlier_programs(folder):
            (folder / name).unlink(missing_ok=True)
        np.savez(folder / "weights.npz", **weights)  # type: ignore[arg-type]
        for name, content in contents.items():
            (folder / f"{name}.stablehlo").write_bytes(content)
        shutil.copyfile(loader.__file__, folder / "policy.py")
        (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
    return metadata


def _earlier_programs(folder: Path) -> list[str]:
    """Names of the programs of an earlier export in this folder."""
    try:
        programs = loader.read_metadata(folder)["programs"].values()
        names = [str(program["file"]) for program in programs]
    except (ValueError, KeyError, TypeError, AttributeError):  # a new folder
        return []
    return [name for name in names if Path(name).name == name]


def _observation_space(spec: EnvSpec) -> dict[str, Any]:
    space: dict[str, Any] = {"shape": list(spec.obs_shape), "dtype": np.dtype(spec.obs_dtype).name}
    if spec.layout:
        space |= {"layout": [part._asdict() for part in spec.layout], "action_mask": spec.action_mask}
    return space


def _action_space(spec: EnvSpec) -> dict[str, Any]:
    if spec.num_actions is not None:
        return {"discrete": spec.num_actions, "shape": [], "dtype": "int32"}
    if spec.action_sizes:
        return {"multi_discrete": list(spec.action_sizes), "shape": list(spec.action_shape), "dtype": "int32"}
    assert spec.action_low is not None and spec.action_high is not None
    bounds = {"low": spec.action_low.tolist(), "high": spec.action_high.tolist()}
    return {"shape": list(spec.action_shape), "dtype": "float32", **bounds}
