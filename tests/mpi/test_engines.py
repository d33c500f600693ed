"""A run whose processes were started by hand and connected by JAX, without MPI: one is killed, the others say
so and end, and the run goes on under MPI to the same bits."""

import json
import signal
import subprocess
import sys
import time

import pytest
import yaml

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.comm import hub
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from tests.holding import Hold
from tests.mpi import cases, launch
from tests.mpi.test_one_sided import hosts_can_be_made

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
RUN = {"log_every": 960, "eval_every": 0, "final_eval_episodes": 4, "checkpoint_seconds": 0.001}
PROXIES = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}  # nobody listens there


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    data = json.loads(json.dumps(cases.PPO))
    data["workflow"] |= {"deterministic": True}
    data["run"] |= {**RUN, "tensorboard": False}
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def train(config, folder, *more):
    return ["-m", "jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder), *more]


def by_hand(port, number, arguments, environment):
    return [
        subprocess.Popen(
            [
                sys.executable,
                *arguments,
                *("--coordinator", f"127.0.0.1:{port}", "--processes", str(number), "--process", str(i)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=launch.ROOT,
            env=launch._environment() | environment,
        )
        for i in range(number)
    ]


def until_saved(folder, processes):
    deadline = time.monotonic() + launch.PATIENCE
    while not ((folder / "checkpoints" / "shared").is_dir() and saved(folder)):
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run did not get going"
        time.sleep(0.05)  # between looks


def saved(folder):
    return Checkpointer(folder / "checkpoints" / "shared").latest()


def engine_of(folder):
    return yaml.safe_load((folder / "config.yaml").read_text())["workflow"]["engine"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["hand", "mpi"])
def test_over_a_network_the_bits_are_the_same(launcher, config_file, tmp_path):
    """Two hosts that reach each other by TCP only; found by hand, or by MPI and then connected by JAX."""
    if not hosts_can_be_made():
        pytest.skip("no network namespaces here")
    script = str(launch.ROOT / "scripts" / "mpi_hosts.sh")
    settings = {"PYTHONPATH": str(launch.ROOT), "LAUNCHER": launcher, "MPIEXEC": str(find_mpiexec())}
    command = [sys.executable, *train(config_file, tmp_path / "two", "workflow.engine=jax")]
    done = subprocess.run(
        [script, "2", *command],
        capture_output=True,
        text=True,
        env=launch._environment() | settings,
        cwd=launch.ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status, output = launch.run(1, *train(config_file, tmp_path / "one"))
    assert status == 0, output
    one, two = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two"))
    assert one["params_sha256"] == two["params_sha256"]


@pytest.mark.full
def test_killed_without_a_launcher_and_resumed_on_the_other_engine(config_file, tmp_path):
    folder, whole = tmp_path / "broken", tmp_path / "whole"
    hold = Hold(tmp_path / "hold")
    settings = hold.environment | PROXIES
    with hub.reserved_port() as port:
        processes = by_hand(port, 2, train(config_file, folder, "workflow.devices=2"), settings)
        until_saved(folder, processes)
    assert engine_of(folder) == "jax"
    processes[1].send_signal(signal.SIGKILL)
    output, _ = processes[0].communicate(timeout=launch.PATIENCE)
    processes[1].communicate()
    # not JAX's words, which come after 60 s, nor the watchdog's, after 300 s
    assert processes[0].returncode == hub.EXIT_DIED, output
    assert f"rank 1 (process {processes[1].pid} on" in output and "has died; the job ends here" in output
    assert "12 shards on 2 ranks × 2 devices" in output, output

    hold.release()
    status, output = launch.run(2, *train(config_file, folder, "workflow.engine=mpi", "--resume"))
    assert status == 0 and "resumed at" in output, output
    assert engine_of(folder) == "mpi"
    status, output = launch.run(1, *train(config_file, whole))
    assert status == 0, output
    one, other = (json.loads((path / "summary.json").read_text()) for path in (folder, whole))
    assert one["params_sha256"] == other["params_sha256"]
    rows = [str(without_clock(read_metrics(path)).to_pylist()) for path in (folder, whole)]
    assert rows[0] == rows[1]
