"""Does MPI work here? Starts two ranks of mpi_selftest with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

from jaxrl_hpc.cli.doctor_checks import BROKEN, NOTE, OK, Check, find_mpiexec, importable
from jaxrl_hpc.extras import INSTALL_MPI
from jaxrl_hpc.runtime import engine

RANKS = 2
STEPS = {"ranks": "starting", "allreduce": "mpi4jax allreduce inside jit", "window": "one-sided memory"}
REINSTALL = 'CUDA_PATH=/dev/null pip install --no-cache-dir --force-reinstall "mpi4jax" mpi4py'


def _environment() -> dict[str, str]:
    """Our environment without variables of a surrounding job, with one core per rank."""
    inherited = ("PMI_", "PMIX_", "OMPI_COMM", "HYDI_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(inherited)}
    # needed by Open MPI for two ranks on a small machine; ignored by others
    relaxed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return {"JAX_PLATFORMS": "cpu", "NPROC": "1", **relaxed, **kept}


def launch(command: list[str], seconds: float, **settings: str) -> tuple[str, str, bool]:
    """(stdout, stderr, in time?) of a command; ended with all its children after the deadline."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment() | settings,
        start_new_session=True,  # so that the deadline reaches the ranks too
    )
    try:
        return *process.communicate(timeout=seconds), True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return *process.communicate(), False


def parse(output: str) -> list[dict[str, Any]]:
    """The JSON objects among whatever else was printed; several ranks may share a line."""
    results, decoder = [], json.JSONDecoder()
    for match in re.finditer(r'\{"step"', output):
        with contextlib.suppress(json.JSONDecodeError):
            results.append(decoder.raw_decode(output, match.start())[0])
    return results


def judge(launcher: str, stdout: str, stderr: str, in_time: bool, seconds: float) -> Check:
    """Interprets the output of the ranks."""
    results = parse(stdout)
    passed = {r["step"]: r["text"] for r in results if r["ok"]}
    failed = [r for r in results if not r["ok"]]
    wrong_size = f"of {RANKS} processes in the job"
    if any(wrong_size in r["text"] for r in failed):
        return Check(
            "MPI",
            BROKEN,
            f"{launcher} starts separate jobs of one process: it belongs to a different MPI than mpi4py "
            f"({failed[0]['text']})",
            "Use the mpiexec of the library that mpi4py was built with (--mpiexec PATH tries another), "
            f"or rebuild mpi4py and mpi4jax with this one: {REINSTALL}",
        )
    if failed:
        step, text = failed[0]["step"], failed[0]["text"]
        advice = "Load the MPI module that mpi4py was built with, or rebuild: " + REINSTALL
        if "No module named 'mpi4jax'" in text:
            advice = (
                "Run: CUDA_PATH=/dev/null pip install --no-cache-dir mpi4jax (needed by ranks that train)."
            )
        elif step == "window":
            return Check(
                "MPI",
                NOTE,
                f"{'; '.join(passed.values())}; but one-sided memory does not work: {text}",
                "Workflows rma and rma_queue report this at the start and fall back to two-sided messages.",
            )
        return Check("MPI", BROKEN, f"{STEPS[step]} failed: {text}", advice)
    missing = [text for step, text in STEPS.items() if step not in passed]
    if not in_time:
        return Check(
            "MPI",
            BROKEN,
            f"no answer within {seconds:.0f} s while {missing[0] if missing else 'ending'}, by {launcher}",
            "Login nodes often forbid mpiexec: try inside a job, or raise --deadline.",
        )
    if missing:
        last = next((line for line in reversed(stderr.splitlines()) if line.strip()), "no message")
        return Check(
            "MPI",
            BROKEN,
            f"{launcher}: the ranks ended while {missing[0]} ({last.strip()})",
            f"Check the MPI installation; to rebuild: {REINSTALL}",
        )
    return Check("MPI", OK, "; ".join([*passed.values(), f"launcher {launcher}"]))


def mpi(mpiexec: str | None, seconds: float) -> Check:
    """Two ranks on this machine."""
    if not importable("mpi4py"):
        return Check(
            "MPI",
            NOTE,
            "mpi4py is not installed: single-process workflows work, workflows with ranks do not",
            f"To use ranks: {INSTALL_MPI} (with the MPI of a cluster if its module is loaded, else MPICH).",
        )
    launcher = mpiexec or find_mpiexec()
    if launcher is None:
        return Check(
            "MPI",
            BROKEN,
            "mpi4py is installed, but there is no mpiexec",
            "Load an MPI module, or: pip install mpich; srun --mpi=pmi2 starts ranks inside a Slurm job.",
        )
    command = [launcher, "-n", str(RANKS), sys.executable, "-m", "jaxrl_hpc.cli.mpi_selftest", str(RANKS)]
    try:
        stdout, stderr, in_time = launch(command, seconds)
    except OSError as error:
        return Check("MPI", BROKEN, f"{launcher} does not start: {error.strerror}", "Give --mpiexec PATH.")
    check = judge(launcher, stdout, stderr, in_time, seconds)
    if check.status == OK and len(engine.visible_gpus()) >= RANKS:
        return check._replace(finding=f"{check.finding}; {device_memory(command, seconds)}")
    return check


def device_memory(command: list[str], seconds: float) -> str:
    """Whether MPI can send from GPU memory. Ranks that try it without support often crash."""
    for value, what in (("1", "GPU-aware"), ("0", "via copies in host memory")):
        stdout, _, _ = launch(command, seconds, JAX_PLATFORMS="cuda", MPI4JAX_USE_CUDA_MPI=value)
        if any(result["step"] == "allreduce" and result["ok"] for result in parse(stdout)):
            return f"messages from GPUs {what}: set MPI4JAX_USE_CUDA_MPI={value} with workflow.engine=mpi"
    return "no messages from GPUs: leave workflow.engine at auto, which is jax there"
