"""Can JAX connect processes without MPI (workflow.engine: jax)? Two of jax_selftest, with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from jaxrl_hpc.cli.doctor_checks import BROKEN, OK, Check
from jaxrl_hpc.cli.doctor_mpi import _environment, parse
from jaxrl_hpc.comm import hub
from jaxrl_hpc.runtime import engine

PROCESSES = 2
STEPS = {"connect": "connecting", "devices": "looking at devices", "sum": "a sum over all devices inside jit"}
ADVICE = (
    "Runs of one process, and workflow.engine=mpi, work without it. Look for a firewall between processes of "
    "one host, and for proxy variables (grpc_proxy, https_proxy); try JAX_PLATFORMS=cpu."
)


def start(seconds: float) -> tuple[str, str, bool]:
    """(stdout and stderr of process 0, in time?); whatever is left is ended after the deadline."""
    environment = _environment()
    if len(engine.visible_gpus()) >= PROCESSES:  # else both would use the same one
        environment.pop("JAX_PLATFORMS", None)
    command = [sys.executable, "-m", "jaxrl_hpc.cli.jax_selftest", str(PROCESSES)]
    deadline, in_time = time.monotonic() + seconds, True
    outputs = []
    with hub.reserved_port() as port:
        processes = [
            subprocess.Popen(
                [*command, f"127.0.0.1:{port}", str(i)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
            for i in range(PROCESSES)
        ]
        for process in processes:
            try:
                outputs.append(process.communicate(timeout=max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                in_time = False
                os.killpg(process.pid, signal.SIGKILL)
                outputs.append(process.communicate())
    return "\n".join(out for out, _ in outputs), outputs[0][1], in_time


def judge(stdout: str, stderr: str, in_time: bool, seconds: float) -> Check:
    """Interprets the output of the processes."""
    results = parse(stdout)
    passed = {r["step"]: r["text"] for r in results if r["ok"]}
    failed = next((r for r in results if not r["ok"]), None)
    if failed:
        return Check("JAX engine", BROKEN, f"{STEPS[failed['step']]} failed: {failed['text']}", ADVICE)
    missing = [text for step, text in STEPS.items() if step not in passed]
    if not in_time:
        what = missing[0] if missing else "ending"
        return Check("JAX engine", BROKEN, f"no answer within {seconds:.0f} s while {what}", ADVICE)
    if missing:
        last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "no message")
        return Check("JAX engine", BROKEN, f"processes ended while {missing[0]} ({last})", ADVICE)
    return Check("JAX engine", OK, "; ".join(passed[step] for step in (*STEPS, "flags") if step in passed))


def connected(seconds: float) -> Check:
    """Two processes on this machine, by hand."""
    return judge(*start(seconds), seconds)
