"""doctor tells working, absent and broken apart, and ends with the right code."""

import json
import os
import stat
import subprocess
import sys
import time

import pytest

from jaxrl_hpc.cli import doctor_checks, doctor_jax, doctor_mpi, jax_selftest, main

pytest.importorskip("jax")
PATIENCE = "3000"  # seconds for processes that end by themselves, however busy the machine is


def line(step, ok, text="fine"):
    return json.dumps({"step": step, "ok": ok, "text": text}) + "\n"


def script(path, text):
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def test_local_checks_find_a_working_installation():
    found = {check.name: check for check in doctor_checks.local_checks()}
    assert not [c for c in found.values() if c.status == doctor_checks.BROKEN], found
    assert "jax " in found["versions"].finding
    assert "cpu:0" in found["devices"].finding


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("print('Slurmctld(primary) at here is UP')", doctor_checks.OK, "at here is UP"),
        ("print('Slurmctld(primary) at here is DOWN')", doctor_checks.NOTE, "does not work: Slurmctld"),
        ("import sys; sys.exit('scontrol: error: no config')", doctor_checks.NOTE, "error: no config"),
        ("import time; time.sleep(600)", doctor_checks.NOTE, "no answer within 2 s"),
    ],
)
def test_slurm_is_asked(text, status, words, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed" in doctor_checks.slurm().finding
    script(tmp_path / "sbatch", "")
    assert "no scontrol" in doctor_checks.slurm().finding
    script(tmp_path / "scontrol", text)
    check = doctor_checks.slurm(seconds=2.0 if "sleep" in text else 60.0)
    assert check.status == status and words in check.finding


@pytest.mark.parametrize("deadline", ["1e12", "nan", "-1", "0"])
def test_deadlines_are_bounded(deadline, capsys):
    assert main.main(["doctor", "--deadline", deadline]) == 2
    assert "--deadline: should be from 1 to 86,400 seconds" in capsys.readouterr().err


def test_shared_memory_of_killed_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_checks.leftovers, "leftovers", lambda *_: found)
    monkeypatch.setattr(doctor_checks.leftovers, "remove_leftovers", lambda *_: found)
    found = []
    assert doctor_checks.shared_memory(clean=True).status == doctor_checks.OK
    found = [doctor_checks.leftovers.Leftover(tmp_path, 2_000_000)]
    check = doctor_checks.shared_memory()
    assert check.status == doctor_checks.NOTE and "1 segment of 2.0 MB" in check.finding
    assert "doctor --clean" in check.advice
    assert "removed 1 segment of 2.0 MB" in doctor_checks.shared_memory(clean=True).finding


def test_a_missing_dependency_is_broken(monkeypatch):
    versions = {"jaxrl-hpc": "0.1.0", "jax": "1"}
    monkeypatch.setattr(doctor_checks, "installed", versions.get)
    check = doctor_checks.versions()
    assert check.status == doctor_checks.BROKEN
    assert "flax" in check.finding and "six" in check.finding and "mpi4py" not in check.finding
    assert "pip install" in check.advice


@pytest.mark.parametrize(
    "module, words",
    [("ops.threefry", "random numbers (they take longer"), ("networks.native", "convolutions (they")],
)
def test_a_library_that_was_not_compiled_is_a_note(monkeypatch, tmp_path, module, words):
    assert doctor_checks.compiled_parts().status == doctor_checks.OK
    monkeypatch.setattr(f"jaxrl_hpc.{module}.LIBRARY", tmp_path / "none.so")
    check = doctor_checks.compiled_parts()
    assert check.status == doctor_checks.NOTE and words in check.finding


def test_a_cache_that_cannot_be_written_is_a_note(monkeypatch, tmp_path):
    import jax

    (tmp_path / "file").write_text("")
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "file" / "inside"))
        check = doctor_checks.compilation_cache()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert check.status == doctor_checks.NOTE and "JAXRL_HPC_CACHE" in check.advice


@pytest.mark.full
def test_without_mpi4py_it_is_a_laptop_and_fine(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # import mpi4py raises ImportError
    assert main.main(["doctor", "--deadline", PATIENCE]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mpi4py is not installed: single-process workflows work" in out.replace("  ", " ")
    assert "Everything required works" in out
    assert "psum over 2 devices of 2 processes" in out and "workflow.engine=jax" in out


def test_no_mpiexec(monkeypatch):
    monkeypatch.setattr(doctor_mpi, "importable", lambda name: True)
    monkeypatch.setattr(doctor_mpi, "find_mpiexec", lambda: None)
    check = doctor_mpi.mpi(None, 5)
    assert check.status == doctor_checks.BROKEN and "no mpiexec" in check.finding


def test_a_launcher_that_is_not_there():
    check = doctor_mpi.mpi("/nowhere/mpiexec", 5)
    assert check.status == doctor_checks.BROKEN and "/nowhere/mpiexec does not start" in check.finding


def test_deadline_ends_the_ranks_too(tmp_path):
    child, launcher = tmp_path / "child", tmp_path / "mpiexec"
    told = line("ranks", True).strip()
    # a shell: it has said its word long before the deadline, also on a busy machine
    launcher.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > '{child}'\necho '{told}'\nsleep 600\n")
    launcher.chmod(0o755)
    check = doctor_mpi.mpi(str(launcher), 5)
    assert check.status == doctor_checks.BROKEN
    assert "no answer within 5 s while mpi4jax allreduce" in check.finding
    pid = int(child.read_text())
    for _ in range(6000):
        try:
            with open(f"/proc/{pid}/stat") as f:
                gone = f.read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            gone = True
        if gone:
            break
        time.sleep(0.05)
    assert gone


@pytest.mark.parametrize(
    ("stdout", "stderr", "words"),
    [
        (line("ranks", True) + line("allreduce", False, "sum 7"), "", "allreduce inside jit failed: sum 7"),
        (line("ranks", False, "RuntimeError: cannot load MPI library"), "", "cannot load MPI"),
        (line("ranks", True), "boom\nsegfault\n", "(segfault)"),
        ("", "", "(no message)"),
        ("noise {\n" + line("ranks", True)[:20] + "\n", "", "while starting"),
    ],
)
def test_what_ranks_say_becomes_a_finding(stdout, stderr, words):
    check = doctor_mpi.judge("mpiexec", stdout, stderr, True, 5)
    assert check.status == doctor_checks.BROKEN and words in check.finding and check.advice


def test_ranks_that_write_into_one_line_are_both_heard():
    """As two unbuffered processes do that print at the same moment."""
    both = (line("ranks", False, "1 of 2 processes in the job").strip() * 2) + "\n\n"
    assert len(doctor_mpi.parse(both)) == 2
    check = doctor_mpi.judge("mpiexec", both, "", True, 5)
    assert "separate jobs of one process" in check.finding


def test_without_one_sided_memory_runs_go_on_and_doctor_tells():
    stdout = line("ranks", True) + line("allreduce", True) + line("window", False, "put 7")
    check = doctor_mpi.judge("mpiexec", stdout, "", True, 5)
    assert check.status == doctor_checks.NOTE
    assert "one-sided memory does not work: put 7" in check.finding and "two-sided" in check.advice


def test_all_steps_passed():
    stdout = "".join(line(step, True, step) for step in doctor_mpi.STEPS)
    assert doctor_mpi.judge("mpiexec", stdout, "", True, 5).status == doctor_checks.OK


@pytest.mark.full
@pytest.mark.mpi
def test_a_wrong_launcher_is_recognised(tmp_path):
    """Two processes that know nothing of each other: what another MPI's mpiexec starts."""
    pytest.importorskip("mpi4py")
    text = (
        "import subprocess, sys\n"
        "ranks = [subprocess.Popen(sys.argv[3:]) for _ in range(int(sys.argv[2]))]\n"
        "sys.exit(max(r.wait() for r in ranks))\n"
    )
    check = doctor_mpi.mpi(script(tmp_path / "mpiexec", text), float(PATIENCE))
    assert check.status == doctor_checks.BROKEN
    assert "separate jobs of one process" in check.finding and "--mpiexec" in check.advice


@pytest.mark.mpi
def test_the_command_with_real_ranks(tmp_path):
    pytest.importorskip("mpi4jax")
    if doctor_checks.find_mpiexec() is None:
        pytest.skip("no mpiexec")
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "doctor", "--deadline", PATIENCE]
    environment = {**os.environ, "COLUMNS": "400"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks" in done.stdout and "allreduce inside jit" in done.stdout
    assert "one-sided memory: shared window: data, atomic numbers, bits and a ring work" in done.stdout


@pytest.mark.parametrize(
    ("stdout", "in_time", "words"),
    [
        (line("connect", False, "process 1 of 2 did not connect"), True, "connecting failed: process 1 of 2"),
        (line("connect", True), True, "processes ended while looking at devices (boom)"),
        (line("connect", True), False, "no answer within 5 s while looking at devices"),
    ],
)
def test_processes_that_jax_cannot_connect(stdout, in_time, words):
    check = doctor_jax.judge(stdout, "boom\n", in_time, 5)
    assert check.status == doctor_checks.BROKEN and words in check.finding and check.advice


def seen(process, gpus, shared_out=True, devices=1):
    return jax_selftest.Seen(process, "node", gpus, shared_out, devices, "H100")


def test_gpus_of_processes_are_compared(monkeypatch):
    monkeypatch.delenv("SLURM_GPUS_PER_TASK", raising=False)
    both = [seen(i, ("0", "1"), shared_out=False) for i in (0, 1)]  # each takes its half
    assert jax_selftest.check_devices(both) == "1 per process, 2 in all, H100"
    assert "2 in all" in jax_selftest.check_devices([seen(0, ("0",)), seen(1, ("1",))])
    with pytest.raises(RuntimeError, match=r"2 processes on node see the same 1 GPU\(s\)"):
        jax_selftest.check_devices([seen(0, ("0",)), seen(1, ("0",))])
    with pytest.raises(RuntimeError, match="process 1 on node: 2"):
        jax_selftest.check_devices([seen(0, ()), seen(1, (), devices=2)])


@pytest.mark.parametrize(
    ("works", "words"), [("1", "GPU-aware"), ("0", "copies in host memory"), ("", "auto")]
)
def test_which_memory_of_gpus_mpi_takes(works, words, tmp_path):
    text = (
        f"import os\nif os.environ['MPI4JAX_USE_CUDA_MPI'] == '{works}': print({line('allreduce', True)!r})\n"
    )
    assert words in doctor_mpi.device_memory([script(tmp_path / "mpiexec", text)], float(PATIENCE))
