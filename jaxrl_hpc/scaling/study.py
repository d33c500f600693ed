"""Runs a config on several numbers of ranks and devices, and puts the model beside what was measured.

weak: every worker (a device of a rank) gets as many shards, environment copies, samples and as much replay
as the config says for the whole run; the time of an iteration should stay the same. strong: the config is
divided among the workers; the time of an iteration should fall.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    """What to measure."""

    config: configs.Config
    ranks: Sequence[int]
    devices: Sequence[int]
    mode: str  # weak or strong
    seconds: float  # of one measurement
    rounds: int
    launcher: str  # mpiexec
    network: model.NetworkModel


def config_for(config: configs.Config, mode: str, ranks: int, devices: int) -> dict[str, Any]:
    """The config of one measurement as plain data."""
    data = config.to_dict()
    data["workflow"]["devices"] = devices
    data["run"]["total_env_steps"] = 2**31 - 1  # progress stays small: the learner's work is the same
    if mode == "weak":
        for section, names in GROWING.items():
            for name in names:
                if name in data.get(section, {}):
                    data[section][name] *= ranks * devices
    return data


def measure(request: Request, ranks: int, devices: int, collectives: bool) -> dict[str, Any]:
    """One job; its rank 0's report."""
    task = {
        "config": config_for(request.config, request.mode, ranks, devices),
        "seconds": request.seconds,
        "collectives": collectives,
    }
    pinned = ranks * devices <= available_cores()
    launcher = [
        request.launcher,
        "-n",
        str(ranks),
        *(["-bind-to", "core"] if pinned and devices == 1 else []),
    ]
    command = [sys.executable, "-m", "jaxrl_hpc.scaling.worker", json.dumps(task)]
    if ranks > 1:
        command = [*launcher, *command]
    elif pinned and devices == 1:
        command = ["taskset", "-c", "0", *command]
    environment = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise UserError(f"{ranks} ranks × {devices} devices: the measurement failed: {reason}")
    return json.loads(lines[-1]) | {"ranks": ranks, "devices": devices, "pinned": pinned}


def collect(request: Request, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All layouts in turns, so that a change of the machine's mood hits all of them."""
    shards: int = request.config.workflow.shards  # type: ignore[attr-defined]
    layouts = [(r, d) for d in request.devices for r in request.ranks]
    if (1, 1) not in layouts:
        layouts = [(1, 1), *layouts]  # what all others are compared with
    if request.mode == "strong":
        wrong = [f"{r} × {d}" for r, d in layouts if shards % (r * d)]
        if wrong:
            raise UserError(f"workflow.shards is {shards}, which {', '.join(wrong)} workers do not divide")
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for turn in range(request.rounds):
        for ranks, devices in layouts:
            say(f"round {turn + 1} of {request.rounds}: {ranks} ranks × {devices} devices")
            result = measure(request, ranks, devices, collectives=turn == 0 and devices == 1)
            before = found.setdefault((ranks, devices), result | {"seconds": []})
            before["seconds"] = before["seconds"] + result["seconds"]
    return list(found.values())


def analyse(request: Request, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Measured beside predicted for every layout, and the extrapolation."""
    flow: Any = request.config.workflow
    alone = next(r for r in results if r["ranks"] == r["devices"] == 1)
    compute = float(np.median(alone["seconds"]))
    sigma = model.jitter(alone["seconds"], alone["iterations"])
    lines = {r["ranks"]: model.fit(r["inside"]) for r in results if "inside" in r}
    rows = []
    for result in results:
        workers = result["ranks"] * result["devices"]
        turns = max(1.0, workers / available_cores())
        share = compute if request.mode == "weak" else compute / workers
        line = lines.get(result["ranks"])
        factor = workers if request.mode == "weak" else 1
        talk = 0.0
        if line:
            talk = model.communication(result["messages"], line, flow.shards * factor, flow.deterministic)
        seconds = float(np.median(result["seconds"]))
        speedup = alone["steps_per_iteration"] / compute
        rate = result["steps_per_iteration"] / seconds
        rows.append(
            {
                "ranks": result["ranks"],
                "devices": result["devices"],
                "pinned": result["pinned"],
                "milliseconds": 1e3 * seconds,
                "predicted_milliseconds": 1e3 * (share * turns + talk),
                "communication_milliseconds": 1e3 * talk,
                "env_steps_per_second": rate,
                "efficiency": rate / speedup / min(workers, available_cores()),
                "best_milliseconds": 1e3 * min(result["seconds"]),  # the chunk that was disturbed least
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
            str(r["ranks"]): {"inside": r["inside"], "raw": r["raw"]} for r in results if "inside" in r
        },
        "lines": {str(ranks): line._asdict() for ranks, line in lines.items()},
        "network": request.network._asdict(),
    }
    overhead = lines[min(lines)].latency if lines else 0.0
    report["extrapolation"] = extrapolate(request, alone["messages"], compute, sigma, overhead)
    return report


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
