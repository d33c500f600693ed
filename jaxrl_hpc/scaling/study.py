"""Runs a config on several numbers of ranks and devices, and compares the model with the measurements.

Two baselines: one worker alone, and as many independent workers side by side, one on each core. Cores share
caches, memory and power, so the loss against the second baseline is the cost of working together.

weak: every worker (a device of a rank) gets as many shards, environment copies, samples and as much replay
as the config says for the whole run; the time of an iteration should stay the same. strong: the config is
divided among the workers; the time of an iteration should fall.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.host import available_cores
from jaxrl_hpc.scaling import model

NODES = (1, 2, 4, 16, 128, 1024)
GROWING = {
    "workflow": ("num_envs", "shards"),
    "agent": ("batch_size",),
    "replay": ("capacity", "min_size", "final_capacity"),
}
DEADLINE = 900.0  # seconds of one measurement, compiling included


class Request(NamedTuple):
    """A request for measurements."""

    config: configs.Config
    ranks: Sequence[int]
    devices: Sequence[int]
    mode: str  # weak or strong
    seconds: float  # of one measurement
    rounds: int
    launcher: str  # mpiexec
    network: model.NetworkModel
    engines: Sequence[str] = ("mpi",)


class JobLayout(NamedTuple):
    """One way to run the config."""

    engine: str  # "" with one process
    ranks: int
    devices: int

    @property
    def workers(self) -> int:
        return self.ranks * self.devices

    def describe(self) -> str:
        return f"{self.ranks} ranks × {self.devices} devices" + (f", {self.engine}" if self.engine else "")


def layouts_of(request: Request) -> list[JobLayout]:
    """All that were asked for, one worker alone first; several devices per process are JAX's alone."""
    found = [JobLayout("", 1, 1)]
    for devices in request.devices:
        for ranks in request.ranks:
            engines = [""] if ranks == 1 else [e for e in request.engines if e == "jax" or devices == 1]
            found += [JobLayout(engine, ranks, devices) for engine in engines]
    return list(dict.fromkeys(found))


def config_for(config: configs.Config, mode: str, ranks: int, devices: int) -> dict[str, Any]:
    """The config of one measurement as plain data."""
    data = config.to_dict()
    if "devices" in data["workflow"]:
        data["workflow"]["devices"] = devices
    data["run"]["total_env_steps"] = 2**31 - 1  # progress stays small: the learner's work is the same
    if mode == "weak":
        for section, names in GROWING.items():
            for name in names:
                if name in data.get(section, {}):
                    data[section][name] *= ranks * devices
    return data


def worker_command(task: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "jaxrl_hpc.scaling.worker", json.dumps(task)]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}


def measure(request: Request, layout: JobLayout, collectives: bool) -> dict[str, Any]:
    """One job; its rank 0's report."""
    config = config_for(request.config, request.mode, layout.ranks, layout.devices)
    if layout.engine:
        config["workflow"]["engine"] = layout.engine
    command = worker_command({"config": config, "seconds": request.seconds, "collectives": collectives})
    pinned = layout.workers <= available_cores()
    if layout.ranks > 1:
        bound = ["-bind-to", "core"] if pinned and layout.devices == 1 else []
        command = [request.launcher, "-n", str(layout.ranks), *bound, *command]
    elif pinned and layout.devices == 1:
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())
    return report_of(layout.describe(), done.returncode, done.stdout, done.stderr) | {
        **layout._asdict(),
        "pinned": pinned,
    }


def report_of(what: str, status: int, stdout: str, stderr: str) -> dict[str, Any]:
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    if status or not lines:
        reason = (stderr.strip() or stdout.strip() or "no output").splitlines()[-1]
        raise UserError(f"{what}: the measurement failed: {reason}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure_side_by_side(request: Request, workers: int, iterations: int) -> list[dict[str, Any]]:
    """One worker's run on each of so many cores at the same time, in chunks of so many iterations."""
    config = config_for(request.config, request.mode, 1, 1)
    task = {"config": config, "seconds": request.seconds, "collectives": False, "wait": True}
    processes = [
        subprocess.Popen(
            ["taskset", "-c", str(core), *worker_command(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for core in sorted(os.sched_getaffinity(0))[:workers]
    ]

    def end() -> None:
        for process in processes:
            process.kill()

    late = threading.Timer(DEADLINE, end)
    late.start()
    try:
        for process in processes:  # all have compiled before one starts
            assert process.stdout is not None
            while (line := process.stdout.readline()) and line.strip() != "ready":
                pass
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its output has the reason
                process.stdin.write(f"{iterations}\n")
                process.stdin.flush()
        texts = [process.communicate() for process in processes]
    finally:
        late.cancel()
        end()
    what = f"{workers} runs side by side"
    return [report_of(what, p.returncode, *text) for p, text in zip(processes, texts, strict=True)]


def waiting_of(runs: Sequence[dict[str, Any]]) -> float:
    """Seconds that an iteration would wait for the slowest of these workers, if they synchronised after each.

    The mean of (slowest - mean) over short chunks at the same time; delays of single iterations within a
    chunk are taken to be independent.
    """
    common = min(len(run["short"]["seconds"]) for run in runs)
    times = np.array([run["short"]["seconds"][:common] for run in runs])  # [workers, chunks]
    each = float((times.max(axis=0) - times.mean(axis=0)).mean())
    return each * float(np.sqrt(runs[0]["short"]["iterations"]))


def collect(request: Request, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure all layouts in turns, so that changes of the machine's load affect all of them."""
    shards = request.config.workflow.resources().shards
    layouts = layouts_of(request)
    if request.mode == "strong":
        wrong = dict.fromkeys(f"{each.ranks} × {each.devices}" for each in layouts if shards % each.workers)
        if wrong:
            raise UserError(f"workflow.shards is {shards}, which {', '.join(wrong)} workers do not divide")
    found: dict[JobLayout, dict[str, Any]] = {}
    beside: dict[int, dict[str, Any]] = {}
    for turn in range(request.rounds):
        for layout in layouts:
            say(f"round {turn + 1} of {request.rounds}: {layout.describe()}")
            result = measure(request, layout, collectives=turn == 0)
            before = found.setdefault(layout, result | {"seconds": [], "core_seconds": [], "traces": []})
            before["seconds"] = before["seconds"] + result["seconds"]
            before["core_seconds"] = [*before["core_seconds"], result["core_seconds"]]
            before["traces"] += [result["trace"]] if "trace" in result else []
        iterations = found[layouts[0]]["iterations"]
        for workers in sorted({each.workers for each in layouts if 1 < each.workers <= available_cores()}):
            say(f"round {turn + 1} of {request.rounds}: {workers} separate runs side by side")
            runs = measure_side_by_side(request, workers, iterations)
            entry = beside.setdefault(workers, {"seconds": [], "waiting": []})
            entry["seconds"] += [time for run in runs for time in run["seconds"]]
            entry["waiting"].append(waiting_of(runs))
    for result in found.values():
        result["beside"] = beside.get(result["ranks"] * result["devices"])
    return list(found.values())


def analyse(request: Request, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Measured beside predicted for every layout, and the extrapolation."""
    flow: Any = request.config.workflow
    alone = next(r for r in results if r["ranks"] == r["devices"] == 1)
    compute = float(np.median(alone["seconds"]))
    lines = {name_of(r): model.fit(r["inside"]) for r in results if "inside" in r}
    pairs = [r["beside"]["waiting"] for r in results if r.get("beside")]
    # of two workers with normal delays the slower one is late by sigma / sqrt(pi) on average
    sigma = (
        float(np.median(pairs[0])) * math.sqrt(math.pi)
        if pairs
        else model.jitter(alone["seconds"], alone["iterations"])
    )
    rows = []
    for result in results:
        workers = result["ranks"] * result["devices"]
        turns = max(1.0, workers / available_cores())
        share = compute if request.mode == "weak" else compute / workers
        line = lines.get(name_of(result))
        beside = result.get("beside")
        factor = workers if request.mode == "weak" else 1
        talk = 0.0
        if line:
            talk = model.communication(result["messages"], line, flow.shards * factor, flow.deterministic)
        seconds = float(np.median(result["seconds"]))
        speedup = alone["steps_per_iteration"] / compute
        rate = result["steps_per_iteration"] / seconds
        side: dict[str, Any] = {}
        if traces := result.get("traces"):  # the median round, by how much of it was computing
            side["trace"] = sorted(traces, key=lambda each: each["computing"])[len(traces) // 2]
        if beside:
            apart = float(np.median(beside["seconds"]))  # of one of the runs
            side |= {
                "beside_milliseconds": 1e3 * apart,
                "waiting_milliseconds": 1e3 * float(np.median(beside["waiting"])),
                "efficiency_beside": rate / (workers * alone["steps_per_iteration"] / apart),
            }
        rows.append(
            {
                "engine": result.get("engine", ""),
                "ranks": result["ranks"],
                "devices": result["devices"],
                "pinned": result["pinned"],
                "milliseconds": 1e3 * seconds,
                "predicted_milliseconds": 1e3 * (share * turns + talk),
                "communication_milliseconds": 1e3 * talk,
                "env_steps_per_second": rate,
                "efficiency": rate / speedup / min(workers, available_cores()),
                "best_milliseconds": 1e3 * min(result["seconds"]),  # the chunk that was disturbed least
                "core_milliseconds": 1e3 * float(np.median(result.get("core_seconds", [math.nan]))),
                **side,
            }
        )
    report: dict[str, Any] = {
        "mode": request.mode,
        "machine": machine_facts(),
        "compute_milliseconds": 1e3 * compute,
        "jitter_milliseconds": 1e3 * sigma,
        "messages": alone["messages"],
        "rows": rows,
        "collectives": {
            name_of(r): {"inside": r["inside"], "raw": r.get("raw", {})} for r in results if "inside" in r
        },
        "lines": {name: line._asdict() for name, line in lines.items()},
        "network": request.network._asdict(),
    }
    overhead = next(iter(lines.values())).latency if lines else 0.0
    report["extrapolation"] = extrapolate(request, alone["messages"], compute, sigma, overhead)
    return report


def name_of(result: dict[str, Any]) -> str:
    """Name of a layout in tables of collectives."""
    return f"{result['ranks']} × {result['devices']} {result.get('engine', '')}".strip()


def extrapolate(
    request: Request, messages: Sequence[dict[str, Any]], compute: float, sigma: float, overhead: float
) -> list[dict[str, Any]]:
    """Weak scaling to many nodes of one worker each, over the given network."""
    flow: Any = request.config.workflow
    rows = []
    for nodes in NODES:
        talk = model.over_network(messages, request.network, nodes, overhead, flow.shards, flow.deterministic)
        wait = model.waiting(sigma, nodes)
        rows.append(
            {
                "nodes": nodes,
                "communication_milliseconds": 1e3 * talk,
                "waiting_milliseconds": 1e3 * wait,
                "efficiency": compute / (compute + talk),
                "efficiency_with_waiting": compute / (compute + talk + wait),
            }
        )
    return rows
