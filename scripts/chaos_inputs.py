"""Generated bad inputs for scripts/chaos.py: what a case is made of, and how the program answers it.

A case is KIND:SEED and always does the same to its input. Kinds:
  schema      a config drawn by hypothesis from the config classes, with values of any type and size
  yaml        a shipped config with damaged text
  override    a shipped config with overrides of any kind
  sweep       a sweep file drawn or damaged likewise
  arguments   options of commands with any values
  run         a run directory with a damaged file: config, checkpoint, metrics, summary
  schedule    a damaged schedule-0.csv
  recording   a damaged CSV of the ExaBooster's format
  surrogate   a damaged surrogate file
  bundle      an exported policy with a damaged file
  dataset     recorded transitions, damaged: Parquet, and HDF5 of D4RL and of Minari where h5py is installed
  actors.json a damaged address of a learner that waits for actors

The answers are given by a process of its own (`--worker`), which imports the package once and is ended when
it does not answer. An answer is right if the input is accepted, or refused by the documented exception.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
LATE_SECONDS, HANG_SECONDS = 10.0, 180.0
MEMORY = 12 * 2**30  # address space of the worker: a mistake must not take the machine
BASES = ("cartpole_dqn", "acrobot_ppo", "pendulum_td3", "cartpole_dyna_q", "memory_chain_recurrent_dqn",
         "workflows/cartpole_dqn_async", "workflows/cartpole_ppo_sharded", "workflows/cartpole_seed",
         "workflows/cartpole_a3c_parameter_server", "workflows/cartpole_dyna")  # fmt: skip
ENVS = ("CartPole-v1", "Pendulum-v1", "MemoryChain-bsuite", "Breakout-MinAtar", "ExaBooster-v0")
TOKENS = ("&a *a", "[", "{", "}", "- ", ": ", "!!python/object:os.system {}", "1e999", ".nan", "9" * 400,
          "\t",
          "\0", "é", "\ud7ff", "~", "null", "<<: *x", "0x1f", "2024-13-45", "'", '"', "|", ">", "%", "@", "`",
          "-1", "1" * 30, "run: 5", "agent: []", "? x", "---\n", "#")  # fmt: skip


class Answer(NamedTuple):
    """What became of an input."""

    verdict: str  # ok, refused, TRACEBACK, LATE, HANG, LOST
    text: str
    seconds: float


# -- damage ---------------------------------------------------------------------------------------------


def damage_bytes(dice: random.Random, content: bytes) -> bytes:
    """The same bytes with one thing wrong."""
    data = bytearray(content)
    way = dice.choice(("cut", "flip", "zero", "insert", "remove", "double", "noise", "empty", "swap"))
    place = dice.randrange(len(data)) if data else 0
    if way == "cut":
        return bytes(data[:place])
    if way == "flip":
        for _ in range(dice.choice((1, 1, 3, 30)) if data else 0):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    elif way == "zero":
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    elif way == "insert":
        data[place:place] = dice.randbytes(dice.choice((1, 16, 5000)))
    elif way == "remove":
        del data[place : place + dice.choice((1, 8, 100))]
    elif way == "double":
        return content + content
    elif way == "noise":
        return dice.randbytes(dice.choice((1, 100, 4000)))
    elif way == "empty":
        return b""
    else:
        other = dice.randrange(len(data)) if data else 0
        data[place : place + 16], data[other : other + 16] = (
            data[other : other + 16],
            data[place : place + 16],
        )
    return bytes(data)


def damage_text(dice: random.Random, text: str) -> bytes:
    """A text with one to three things wrong."""
    for _ in range(dice.randint(1, 3)):
        lines = text.splitlines(keepends=True) or [""]
        way, place = dice.randrange(7), dice.randrange(len(lines))
        if way == 0:
            lines.insert(place, dice.choice(lines))
        elif way == 1:
            del lines[place]
        elif way == 2:
            lines[place] = dice.choice((" ", "  ", "\t")) + lines[place]
        elif way == 3:
            cut = dice.randrange(len(lines[place]) + 1)
            lines[place] = lines[place][:cut] + dice.choice(TOKENS) + lines[place][cut:]
        elif way == 4:
            head, colon, _ = lines[place].partition(":")
            lines[place] = f"{head}{colon} {dice.choice(TOKENS)}\n"
        elif way == 5:
            return damage_bytes(dice, "".join(lines).encode("utf-8", "replace"))
        else:
            nested = dice.choice((30, 60, 3000))
            lines.append(f"agent2: {'[' * nested}{']' * nested}\n")
        text = "".join(lines)
    return text.encode("utf-8", "replace")


def damage_file(dice: random.Random, path: Path) -> str:
    """One thing wrong with a file; what was done."""
    way = dice.choice(("bytes", "bytes", "bytes", "bytes", "gone", "folder", "link", "loop"))
    if way == "bytes":
        path.write_bytes(damage_bytes(dice, path.read_bytes()))
    else:
        path.unlink()
        if way == "folder":
            path.mkdir()
        elif way == "link":
            path.symlink_to(path.parent / "nowhere")
        elif way == "loop":
            path.symlink_to(path)
    return f"{way} of {path.name}"


# -- configs drawn from the classes ------------------------------------------------------------------------


def drawn_configs(seed: int, count: int) -> list[dict[str, Any]]:
    """`count` configs whose sections have known keys and values of any kind, by hypothesis."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed
    from hypothesis import strategies as st

    from jaxrl_hpc.config.registry import SECTIONS, find
    from jaxrl_hpc.config.run import RunConfig

    numbers = st.one_of(
        st.integers(-5, 100),
        st.sampled_from([0, -1, 2**31, 2**63, 10**12, 10**30]),
        st.floats(allow_nan=True, allow_infinity=True),
    )
    plain = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=12))
    anything = st.recursive(
        plain,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)
        ),
        max_leaves=6,
    )
    names = {name: list(SECTIONS[name]) for name in SECTIONS} | {"env": list(ENVS)}
    # before anything is drawn: imports may use `random`, which strategies may not
    classes = {part: {name: find(part, name).config for name in found} for part, found in names.items()}

    def section(cls: Any, name: str | None) -> st.SearchStrategy:
        keys = {key: anything for key in cls.model_fields if key not in ("name", "replay_schedule")}
        chosen = st.fixed_dictionaries({}, optional=keys).map(lambda d: dict(list(d.items())[:3]))
        return chosen.map(lambda d: {"name": name, **d} if name else d)

    def component(part: str) -> st.SearchStrategy:
        known = st.sampled_from(names[part]).flatmap(lambda n: section(classes[part][n], n))
        return st.one_of(known, known, known, anything)

    parts = {name: component(name) for name in ("agent", "env")}
    others = {"replay": component("replay"), "workflow": component("workflow")}
    others |= {"run": st.one_of(section(RunConfig, None), anything)}
    found: list[dict[str, Any]] = []

    @with_seed(seed)
    @settings(max_examples=count, database=None, phases=[Phase.generate], deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.fixed_dictionaries(parts, optional=others))
    def collect(data: dict[str, Any]) -> None:
        found.append(data)

    collect()
    return found


# -- the worker ------------------------------------------------------------------------------------------


class Samples:
    """Good inputs to damage, made once in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.bundle = folder, folder / "run", folder / "run" / "export"
        self.surrogate, self.recording = folder / "surrogate.bin", folder / "recording.csv"
        self.config, self.offline, self.datasets = (
            folder / "small.yaml",
            folder / "offline.yaml",
            folder / "datasets",
        )

    def make(self) -> None:
        import jax
        import numpy as np

        from jaxrl_hpc import config as configs
        from jaxrl_hpc.envs.exabooster import recording, surrogate
        from jaxrl_hpc.export import export_run
        from jaxrl_hpc.runtime.train import train
        from jaxrl_hpc.workflows.actor_learner.arrival_log import HEAD

        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(yaml.safe_dump(SMALL))
        if not (self.run / "summary.json").is_file():
            train(configs.load(self.config), self.run, overwrite=self.run.exists(), say=lambda _: None)
        if not self.bundle.is_dir():
            export_run(self.run)
        surrogate.save(self.surrogate, surrogate.initial(jax.random.key(0), 4, 1), {"mse": 1.0})
        rows = np.random.default_rng(0).normal(size=(3000, 5)).cumsum(axis=0)
        recording.write(self.recording, rows, rows[:, 0])
        self.offline.write_text(yaml.safe_dump(OFFLINE))
        self.make_datasets()
        (self.folder / "schedule-0.csv").write_text(
            HEAD + "\n" + "".join(f"{i % 2},{i // 2},{i},1\n" for i in range(50))
        )

    def make_datasets(self) -> None:
        """500 transitions of CartPole in every layout."""
        import numpy as np

        from jaxrl_hpc.config.registry import find
        from jaxrl_hpc.datasets import Columns, parquet

        component: Any = find("env", "CartPole-v1")
        self.spec = component.make(component.config(name="CartPole-v1")).spec
        numbers, rows = np.random.default_rng(0), 500
        obs = numbers.normal(size=(rows + 1, 4)).astype(np.float32)
        action, reward = numbers.integers(2, size=rows).astype(np.int32), np.ones(rows, np.float32)
        last, never = np.arange(rows) % 50 == 49, np.zeros(rows, bool)
        columns = Columns(obs[:-1], action, reward, last, never, np.arange(rows) // 50, obs[1:])
        minari = self.datasets / "minari"
        minari.mkdir(parents=True, exist_ok=True)
        parquet.write(self.datasets / "a.parquet", columns, self.spec, {"env": {"name": "CartPole-v1"}})
        if not has_hdf5():
            return
        import h5py

        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        with h5py.File(self.datasets / "a.hdf5", "w") as file:
            for name, values in zip(names, columns, strict=False):
                file.create_dataset(name, data=values, compression="gzip", shuffle=True, fletcher32=True)
        names = ("actions", "rewards", "terminations", "truncations")
        with h5py.File(minari / "main_data.hdf5", "w") as file:
            for number in range(rows // 50):
                begin, group = 50 * number, file.create_group(f"episode_{number}")
                group["observations"] = obs[begin : begin + 51]
                for name, values in zip(names, (action, reward, last, never), strict=True):
                    group[name] = values[begin : begin + 50]
        about = {
            "env_spec": json.dumps({"id": "CartPole-v1", "max_episode_steps": 500}),
            "total_episodes": 10,
        }
        (minari / "metadata.json").write_text(json.dumps(about))


def has_hdf5() -> bool:
    return importlib.util.find_spec("h5py") is not None


SMALL: dict[str, Any] = {
    "agent": {"name": "dqn", "batch_size": 16, "network": {"hidden": [16]}, "n_step": 2},
    "env": {"name": "CartPole-v1"},
    "replay": {"name": "prioritised", "capacity": 2048, "min_size": 64},
    "workflow": {"name": "fused", "num_envs": 4},
    "run": {
        "total_env_steps": 2400, "log_every": 400, "eval_every": 1200, "eval_episodes": 4, "seeds": 2,
        "final_eval_episodes": 4, "checkpoint_seconds": 0.0,
    },
}  # fmt: skip
OFFLINE = SMALL | {"workflow": {"name": "offline", "dataset": "?"}}
# values for places where something else belongs
ODD: tuple[Any, ...] = (None, True, -1, 0, 10**12, 10**30, 1.5, float("inf"), float("nan"), "", "x", "O", [],
                        [[]], {}, [-1], [1, "x"], {"a": None}, "datetime64[s]", "\udc00", "é" * 300,
                        [[1], [1, 2]], "[" * 3000)  # fmt: skip


def damage_json(dice: random.Random, text: str) -> bytes:
    """A JSON object with something else in one or two places, or a text that is none."""
    way = dice.choice(("value", "value", "value", "text", "nested", "bytes"))
    if way == "text":
        return damage_text(dice, text)
    if way == "bytes":
        return damage_bytes(dice, text.encode())
    if way == "nested":
        return (dice.choice(("[", '{"a":')) * dice.choice((50, 5000, 100_000))).encode()
    data = json.loads(text)
    for _ in range(dice.randint(1, 2)):
        place = data
        while True:
            key = dice.choice(list(place))
            if not (isinstance(place[key], dict) and place[key]) or dice.random() < 0.2:
                break
            place = place[key]
        if dice.random() < 0.2:
            del place[key]
        else:
            place[key] = dice.choice(ODD)
    return json.dumps(data).encode()


def damage_table(dice: random.Random, path: Path) -> str:
    """A valid Parquet file whose description or columns are wrong; what was done."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from jaxrl_hpc.datasets.parquet import KEY

    table = pq.read_table(path)
    name, rows = dice.choice(table.column_names), table.num_rows
    way = dice.choice(("description", "description", "description", "gone", "column", "twice", "few"))
    if way == "description":
        changed = damage_json(dice, table.schema.metadata[KEY].decode())
        table = table.replace_schema_metadata({KEY: changed})
    elif way == "gone":
        table = table.drop_columns([name])
    elif way == "twice":
        table = table.append_column(name, table[name])
    elif way == "few":
        table = table.slice(0, dice.randint(0, 2))
    else:
        odd = (
            pa.nulls(rows),
            pa.array(["x"] * rows),
            pa.array([b"\xff"] * rows).dictionary_encode(),
            pa.array([[1.0] * (number % 3) for number in range(rows)]),
            pa.array([[[1.0]]] * rows),
            pa.array([{"a": 1}] * rows),
            pa.array([2**62] * rows),
            pa.array([-1] * rows),
            pa.array([1e300] * rows),
            pa.array([float("nan")] * rows),
            pa.array([0] * rows, pa.timestamp("s")),
            pa.array([True] * rows),
            pa.array([1.0] * rows, pa.float16()),
        )
        table = table.set_column(table.column_names.index(name), name, dice.choice(odd))
    pq.write_table(table, path)
    return f"{way} ({name}) of {path.name}"


def damage_hdf5(dice: random.Random, path: Path) -> str:
    """A valid HDF5 file whose layout is wrong; what was done."""
    import h5py
    import numpy as np

    with h5py.File(path, "a") as file:
        places: list[str] = []
        file.visit(places.append)
        name = dice.choice(sorted(places))
        way = dice.choice(("gone", "group", "odd", "odd", "odd", "link", "soft", "huge", "named", "empty"))
        if way == "named":
            file.create_group(dice.choice(("episode_x", "episode_", "episode_-1", "episode_1e3", "episode_²",
                                           "episode_" + "9" * 5000)))  # fmt: skip
            return f"{way} of {path.name}"
        del file[name]
        if way == "group":
            file.create_group(name)
        elif way == "link":
            file[name] = h5py.ExternalLink(dice.choice(("/etc/passwd", "/dev/zero", path.name)), "/")
        elif way == "soft":
            file[name] = h5py.SoftLink(dice.choice(("/", name, "/nowhere")))
        elif way == "huge":
            file.create_dataset(name, (10**9, 10 ** dice.randint(0, 6)), "f4", chunks=True)
        elif way == "empty":
            file[name] = h5py.Empty("f4")
        elif way == "odd":
            odd = (1.0, "x", np.zeros(0), np.zeros((500, 0)), np.zeros((3, 3)), np.zeros(500, "S4"), ["a"],
                   np.full(500, np.nan), np.full(500, 1e300), np.full(500, -(2**62)), np.zeros(500, "c16"),
                   np.zeros(500, [("a", "f4")]), np.zeros(50), np.zeros((1,) * 9))  # fmt: skip
            file[name] = dice.choice(odd)
    return f"{way} of {name} in {path.name}"


class Inputs:
    """Makes the input of a case in a folder and puts it to the program."""

    def __init__(self, samples: Samples, scratch: Path) -> None:
        self.samples, self.scratch = samples, scratch
        self._drawn: dict[int, list[dict[str, Any]]] = {}

    def answer(self, kind: str, seed: int) -> tuple[str, str, list[str]]:
        """(verdict, text, the command that asks the same of the real program, empty if there is none)."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        dice = random.Random(f"{kind}:{seed}")
        return getattr(self, f"_{kind.partition('.')[0]}")(dice, seed)

    # every method makes an input and returns what _guarded says

    def _config(self, content: bytes, overrides: list[str] = []) -> tuple[str, str, list[str]]:  # noqa: B006
        from jaxrl_hpc import config as configs
        from jaxrl_hpc.runtime.build import build
        from jaxrl_hpc.runtime.memory import check_memory
        from jaxrl_hpc.runtime.train import lanes_of, make_runner

        path = self.scratch / "bad.yaml"
        path.write_bytes(content)

        def ask() -> None:
            config = configs.load(path, overrides)
            check_memory(config, make_runner(config, build(config), lanes_of(config)))

        command = ["train", str(path), *overrides, "--run-dir", str(self.scratch / "out")]
        return (*_guarded(ask), command)

    def _schema(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        batch, index = divmod(seed, 100)
        if batch not in self._drawn:
            self._drawn = {batch: drawn_configs(batch, 100)}
        drawn = self._drawn[batch]
        data = drawn[index % len(drawn)]
        return self._config(yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "replace"))

    def _yaml(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        text = (ROOT / "configs" / f"{dice.choice(BASES)}.yaml").read_text()
        return self._config(damage_text(dice, text))

    def _override(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        keys = ("agent.gamma", "agent.batch_size", "agent.network.hidden", "run.seeds", "workflow.num_envs",
                "replay.capacity", "run.name", "env.name", "agent.name", "workflow.name", "run", "x.y", "",
                "agent.network.hidden.0", "run.threads", "run.eval_episodes", "agent..x", "run.trackers",
                "replay.name", "workflow.devices", "workflow.shards", "agent.n_step")  # fmt: skip
        values = (
            *TOKENS,
            "-1",
            "0",
            "1e9",
            "1000000000",
            "[1, 2",
            "{a: 1}",
            "true",
            "x" * 500,
            "../..",
            "a/b",
            "",
        )
        texts = [
            f"{dice.choice(keys)}{dice.choice(('=', '=', '=', ''))}{dice.choice(values)}".replace("\0", "")
            for _ in range(dice.randint(1, 2))
        ]
        texts = [text for text in texts if not text.startswith("-")]
        base = ROOT / "configs" / f"{dice.choice(BASES)}.yaml"
        return self._config(base.read_bytes(), texts)

    def _sweep(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        spec: dict[str, Any] = {"base": SMALL, "axes": {"agent.gamma": [0.9, 0.99]}, "seeds": 2}
        odd = (None, -1, 0, 10**12, "x", [], {}, [None], {"grid": [1, 0], "points": 3}, True, 1.5, "a\nb",
               {"log_uniform": [0, 1]}, {"values": []}, {"random": [1, 2], "grid": [1, 2]},
               [[1], [2]])  # fmt: skip
        keys = ("axes", "seeds", "samples", "budget", "metric", "goal", "trials_per_task", "halving", "slurm",
                "name", "base", "overrides", "draw_seed", "what")  # fmt: skip
        for _ in range(dice.randint(1, 2)):
            if dice.random() < 0.4:
                axes = spec["axes"] = dict(spec["axes"]) if isinstance(spec.get("axes"), dict) else {}
                axes[
                    dice.choice(("agent.gamma", "agent.name", "run.seed", "x", "agent.n_step", "env.name"))
                ] = dice.choice(odd)
            else:
                spec[dice.choice(keys)] = dice.choice(odd)
        content = yaml.safe_dump(spec).encode()
        if dice.random() < 0.3:
            content = damage_text(dice, content.decode())
        path = self.scratch / "sweep.yaml"
        path.write_bytes(content)
        return self._command(["sweep", dice.choice(("plan", "status", "collect")), str(path), "--dir",
                              str(self.scratch / "out")])  # fmt: skip

    def _arguments(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        odd = ("-1", "0", "1e12", "1000000000000", "x", "", "nan", "9" * 30, "../..", "é", "--", "-", "\n")
        run = str(self.samples.run)
        words = dice.choice(
            (
                ["evaluate", run, "--episodes"], ["evaluate", run, "--seed"], ["evaluate", run, "env.name="],
                ["play", run, "--frames"], ["play", run, "--run-seed"], ["export", run, "--seed"],
                ["evaluate"], ["verify"], ["report"], ["runs"], ["train"], ["sweep", "plan"], ["sweep"],
                ["list"], ["schema"], ["surrogate", "fit", "--rows"], ["surrogate", "fit", "--width"],
                ["surrogate", "check"], ["scaling"], ["doctor", "--deadline"], ["what"],
                ["sweep", "run", str(self.samples.config), "--jobs"],
            )
        )  # fmt: skip
        value = dice.choice(odd)
        last = [words[-1] + value] if words[-1].endswith("=") else [words[-1], value]
        if value in ("0",) and words[0] == "surrogate":
            last[-1] = "-5"
        return self._command([*words[:-1], *last])

    def _run(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        run = self.scratch / "run"
        shutil.copytree(
            self.samples.run, run, ignore=shutil.ignore_patterns("tensorboard", "plots", "export")
        )
        files = sorted(p for p in run.rglob("*") if p.is_file())
        done = [damage_file(dice, path) for path in dice.sample(files, dice.choice((1, 1, 2)))]
        command = dice.choice(("verify", "report", "runs", "verify", "report", "evaluate", "resume"))
        before = _contents(run)
        arguments = {
            "runs": ["runs", str(self.scratch)],
            "evaluate": ["evaluate", str(run), "--episodes", "2"],
            "resume": ["train", str(self.samples.config), "--run-dir", str(run), "--resume"],
        }.get(command, [command, str(run)])
        verdict, text, real = self._command(arguments)
        if command != "resume":
            lost = [name for name in before if name not in _contents(run)]
            if lost:
                return "LOST", f"{command} removed {', '.join(lost)} ({'; '.join(done)})", real
        return verdict, f"{text} ({'; '.join(done)})", real

    def _schedule(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        from jaxrl_hpc.workflows.actor_learner.arrival_log import ArrivalReplay

        path = self.scratch / "schedule-0.csv"
        path.write_bytes(damage_bytes(dice, (self.samples.folder / "schedule-0.csv").read_bytes()))
        return (*_guarded(lambda: ArrivalReplay(path, 0)), [])

    def _recording(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        from jaxrl_hpc.envs.exabooster import recording

        path = self.scratch / "recording.csv"
        content = self.samples.recording.read_bytes()
        if dice.random() < 0.5:
            path.write_bytes(damage_bytes(dice, content))
        else:
            path.write_bytes(damage_text(dice, content[:3000].decode()))
        return (*_guarded(lambda: recording.read(path, 100_000, dice.random() < 0.5)), [])

    def _surrogate(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        from jaxrl_hpc.envs.exabooster import surrogate

        path = self.scratch / "surrogate.bin"
        shutil.copy(self.samples.surrogate, path)
        damage_file(dice, path)
        return (*_guarded(lambda: surrogate.load(path)), [])

    def _bundle(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        import numpy as np

        from jaxrl_hpc.export import loader

        folder = self.scratch / "bundle"
        shutil.copytree(self.samples.bundle, folder)
        files = [p for p in sorted(folder.iterdir()) if p.name != "policy.py"]
        done = damage_file(dice, dice.choice(files))

        def ask() -> None:
            try:
                loader.load(folder).act(np.zeros(4, np.float32), None)
            except loader.PolicyError as error:
                raise Refused(str(error)) from error

        verdict, text = _guarded(ask)
        return verdict, f"{text} ({done})", []

    def _dataset(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        from jaxrl_hpc import datasets

        folder = self.scratch / "datasets"
        shutil.copytree(self.samples.datasets, folder)
        layouts = ["a.parquet", *(["a.hdf5", "minari/main_data.hdf5"] if has_hdf5() else [])]
        path = folder / dice.choice(layouts)
        metadata = path.with_name("metadata.json")
        if metadata.exists() and dice.random() < 0.4:
            if dice.random() < 0.5:
                done = damage_file(dice, metadata)
            else:
                metadata.write_bytes(damage_json(dice, metadata.read_text()))
                done = "metadata.json"
        elif dice.random() < 0.5:
            done = damage_file(dice, path)
        else:
            done = (damage_table if path.suffix == ".parquet" else damage_hdf5)(dice, path)
        verdict, text = _guarded(lambda: datasets.check_fits(datasets.open_dataset(path), self.samples.spec))
        command = ["train", str(self.samples.offline), f"workflow.dataset={path}", "--run-dir",
                   str(self.scratch / "out")]  # fmt: skip
        return verdict, f"{text} ({done})", command

    def _actors(self, dice: random.Random, seed: int) -> tuple[str, str, list[str]]:
        from jaxrl_hpc.comm.sockets.actor_end import LearnerPlace, SocketActor
        from jaxrl_hpc.comm.sockets.wire import LearnerGone, SocketSizes
        from jaxrl_hpc.runs import address

        address.write(
            self.scratch, address.LearnerAddress(("127.0.0.1",), 9, "k" * 40, "t" * 64, "elsewhere", 1)
        )
        path = self.scratch / address.NAME
        way = dice.choice(("file", "json", "json", "mode", "pipe"))
        if way == "file":
            way = damage_file(dice, path)
        elif way == "json":
            path.write_bytes(damage_json(dice, path.read_text()))
        elif way == "mode":
            path.chmod(dice.choice((0, 0o200, 0o640, 0o604, 0o644, 0o666)))
        else:
            path.unlink()
            os.mkfifo(path)

        def ask() -> None:
            found = address.read(self.scratch)
            if found is None:
                return
            place = LearnerPlace(found.where(), found.port, found.public_key, found.token, str(found))
            actor = SocketActor(place, SocketSizes(8, 8, 8, 1), {}, 1.0)
            try:  # nobody is there, and a moment is enough to see what becomes of the address
                actor.join(time.monotonic() + 0.2, lambda: False)
            except LearnerGone as gone:
                raise Refused(str(gone)) from gone
            finally:
                actor.close()

        verdict, text = _guarded(ask)
        return verdict, f"{text} ({way})", []

    def _command(self, arguments: list[str]) -> tuple[str, str, list[str]]:
        from jaxrl_hpc.cli.main import main

        def ask() -> None:
            err = io.StringIO()
            with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
                try:
                    code = main(arguments)
                except SystemExit as end:  # of argparse
                    code = int(end.code or 0)
            text = err.getvalue()
            if "Traceback" in text:
                raise RuntimeError(text)
            if code == 2:
                raise Refused(text.strip())

        return (*_guarded(ask), arguments)


class Refused(Exception):
    """By the documented exception of that part."""


def _contents(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def _guarded(ask: Callable[[], Any]) -> tuple[str, str]:
    from jaxrl_hpc.errors import UserError, os_errors_told

    try:
        with os_errors_told():
            ask()
    except (UserError, Refused) as error:
        if not str(error).strip():
            return "TRACEBACK", "refused without a word"
        return "refused", str(error).splitlines()[-1][:300]
    except Exception:
        return "TRACEBACK", "".join(traceback.format_exc()[-1500:])
    return "ok", ""


def work(folder: Path) -> None:
    """Answers cases from stdin, one line each, until it is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the package prints is of no interest
    os.chdir(folder)
    samples = Samples(folder / "samples")
    samples.make()
    inputs = Inputs(samples, folder / "scratch")
    print(json.dumps(["ready"]), file=answers, flush=True)
    for line in sys.stdin:
        kind, seed = json.loads(line)
        print(json.dumps(inputs.answer(kind, seed)), file=answers, flush=True)


# -- the other side --------------------------------------------------------------------------------------


class Worker:
    """A process that answers cases; started anew when one has ended or blocked it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[str] | None = None

    def ask(self, kind: str, seed: int) -> tuple[Answer, list[str]]:
        process = self.process or self._start()
        assert process.stdin is not None
        begin = time.monotonic()
        with Starved(process.pid) as starved:
            print(json.dumps([kind, seed]), file=process.stdin, flush=True)
            line = self._line(HANG_SECONDS)
        seconds = max(0.0, time.monotonic() - begin - starved.seconds)
        if line is None:
            hung = process.poll() is None
            self.close()
            if hung:
                return Answer("HANG", f"no answer within {HANG_SECONDS:.0f} s", seconds), []
            return Answer("TRACEBACK", f"the process ended with {process.returncode}", seconds), []
        verdict, text, command = line
        # a damaged run may be good enough to be evaluated or continued, which takes as long as it takes
        answered = verdict == "refused" or (verdict == "ok" and kind not in ("run", "arguments"))
        if seconds > LATE_SECONDS and answered:
            verdict, text = "LATE", f"answered after {seconds:.1f} s: {verdict} {text}"
        return Answer(verdict, text, seconds), command

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(self.folder)]
        with open(self.folder / "worker.log", "a") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        if self._line(600) is None:
            raise SystemExit(f"the worker does not start: {(self.folder / 'worker.log').read_text()[-2000:]}")
        return self.process

    def _line(self, seconds: float) -> Any:
        """The worker's next line; None if there is none in time."""
        assert self.process is not None and self.process.stdout is not None
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.append(self.process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(seconds)
        return json.loads(found[0]) if found and found[0] else None

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Starved:
    """Seconds that threads of a process and of those it started were ready to run and had no core, while this
    context lasts: a busy machine is not its fault."""

    def __init__(self, pid: int) -> None:
        self.seconds = 0.0
        self._pid = pid
        self._first = _waits(pid)
        self._last = dict(self._first)  # also of threads that have ended since
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Starved:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()
        self._last |= _waits(self._pid)
        self.seconds = sum(waited - self._first.get(thread, 0.0) for thread, waited in self._last.items())

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self._last |= _waits(self._pid)


def _waits(pid: int) -> dict[str, float]:
    """Seconds without a core so far, by thread of a process and its descendants."""
    found: dict[str, float] = {}
    processes = [str(pid)]
    for process in processes:
        for task in Path(f"/proc/{process}/task").glob("*"):
            try:
                found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
                processes += (task / "children").read_text().split()
            except (OSError, ValueError, IndexError):
                continue  # it has just ended
    return found


def ask_command(arguments: list[str], folder: Path) -> Answer:
    """The same of the real command, whose start is part of the answer's time."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True, errors="replace",
    )  # fmt: skip
    try:
        with Starved(process.pid) as starved:
            output, _ = process.communicate(timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return Answer("HANG", f"{' '.join(arguments)}: no end within {HANG_SECONDS:.0f} s", HANG_SECONDS)
    seconds = max(0.0, time.monotonic() - begin - starved.seconds)
    text = f"{' '.join(arguments)[:200]}: code {process.returncode}: {output[-600:]}"
    if "Traceback" in output or process.returncode not in (0, 1, 2):
        return Answer("TRACEBACK", text, seconds)
    if seconds > LATE_SECONDS:
        return Answer("LATE", f"{seconds:.1f} s: {text}", seconds)
    return Answer("refused" if process.returncode == 2 else "ok", text, seconds)


KINDS = ("schema", "yaml", "override", "sweep", "arguments", "run", "schedule", "recording", "surrogate",
         "bundle", "dataset", "actors.json")  # fmt: skip

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    work(Path(sys.argv[2]).resolve())
