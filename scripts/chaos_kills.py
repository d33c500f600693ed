"""Random faults for scripts/chaos.py: training jobs that are killed, stopped, slowed, starved and damaged.

A case is WORKFLOW:SEED. It draws a config, trains it in a job that faults happen to at random moments, starts
the job again with --resume until it finishes, and compares. `fused`, `offline` and deterministic `sharded`
promise the bits of a run that nothing happened to. Workflows with actors promise that every unroll is used
exactly once, the parameter server and gossip that every exchange is, and all of them that metrics have
neither gaps nor repeats. In a job of `elastic` faults happen to actors too, which do not end it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from chaos_inputs import damage_file
from chaos_record import Outcome

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.cli.doctor_mpi import _environment
from jaxrl_hpc.comm.leftovers import remove_leftovers
from jaxrl_hpc.datasets import Columns, parquet
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.types import EnvSpec
from jaxrl_hpc.workflows.actor_learner.arrival_log import file_of

ROOT = Path(__file__).resolve().parents[1]
HANG_SECONDS = 600.0  # of one start: start-up, training and the watchdog's deadline on a busy machine
END_SECONDS = 240.0  # after a fault until the job has ended
DEADLINE = 20.0  # of the watchdog
RUN = {
    "log_every": 400, "eval_every": 0, "eval_episodes": 2, "final_eval_episodes": 2,
    "checkpoint_seconds": 0.2,
    "tensorboard": False, "progress_seconds": 1.0,
}  # fmt: skip
DQN = {"name": "dqn", "batch_size": 24, "network": {"hidden": [16]}, "n_step": 2}
A2C = {"name": "a2c", "network": {"hidden": [16]}}
PPO = {"name": "ppo", "network": {"hidden": [16]}, "epochs": 2, "minibatches": 2}
UNIFORM = {"name": "uniform", "capacity": 2400, "min_size": 96}
PRIORITISED = {"name": "prioritised", "capacity": 2400, "min_size": 96}
EXACT = ("fused", "offline", "sharded")  # equal bits are promised
RECORDED = (
    "async",
    "elastic",
    "rma",
    "rma_queue",
    "dyna",
    "parameter_server",
    "gossip",
)  # unrolls, exchanges
WORKFLOWS = (
    "fused", "sharded", "async", "rma", "rma_queue", "central_inference", "parameter_server", "gossip",
    "dyna", "elastic", "offline",
)  # fmt: skip
SLOW, WHOLE, GOES_ON = "slow rank", " of the whole job", ", then SIGCONT"  # in names of faults
DATASET = "recorded.parquet"  # beside the run's folder, where jobs are started
SPACES = {"CartPole-v1": (4, 2), "Acrobot-v1": (6, 3)}  # numbers of observations and actions
ELASTIC = """trap : TERM USR1
{learner} &
learner=$!
{actors}while kill -0 $learner 2> /dev/null; do wait $learner; code=$?; done
kill -KILL $(jobs -p) 2> /dev/null
wait
exit $code
"""
FAULTS = ("SIGKILL", "SIGKILL", "SIGKILL", "SIGTERM", "SIGUSR1", "SIGSTOP", SLOW)


def drawn(workflow: str, dice: random.Random) -> tuple[dict[str, Any], int]:
    """(config, ranks) of a case."""
    replay = dice.choice((UNIFORM, PRIORITISED))
    steps = {"total_env_steps": 48_000, "seed": dice.randrange(1000), **RUN}
    env = {"name": dice.choice(("CartPole-v1", "Acrobot-v1"))}
    off_policy: dict[str, Any] = {"agent": DQN, "env": env, "replay": replay, "run": steps}
    on_policy: dict[str, Any] = {"agent": A2C, "env": env, "run": steps}
    if workflow == "fused":
        data = dice.choice((off_policy, on_policy, {"agent": PPO, "env": env, "run": steps}))
        seeds = {"seeds": dice.choice((1, 2)), "total_env_steps": 80_000}
        return data | {"workflow": {"name": "fused", "num_envs": 4}, "run": steps | seeds}, 1
    if workflow == "offline":
        flow = {"name": "offline", "dataset": DATASET, "online_after": dice.choice((None, 48_000))}
        return off_policy | {"workflow": flow, "replay": replay | {"capacity": 16_000},
                             "run": steps | {"total_env_steps": 60_000}}, 1  # fmt: skip
    if workflow == "sharded":
        flow = {
            "name": "sharded",
            "shards": 4,
            "num_envs": 8,
            "deterministic": True,
            "deadline_seconds": DEADLINE,
        }
        return dice.choice((off_policy, on_policy)) | {"workflow": flow}, 2
    flow = {"name": workflow, "num_envs": 4, "unroll_length": 8, "deadline_seconds": DEADLINE}
    steps |= {"record_schedule": workflow in RECORDED}
    if workflow in ("async", "elastic", "rma", "rma_queue"):
        data = dice.choice((off_policy, on_policy))
        if data is off_policy:
            flow["updates_per_iteration"] = 2
        return data | {"workflow": flow, "run": steps}, dice.choice((2, 3))
    if workflow == "dyna":
        agent = {"name": "dyna_q", "network": {"hidden": [16]}, "batch_size": 16, "planning_updates": 2}
        return off_policy | {"agent": agent, "workflow": flow, "run": steps | {"total_env_steps": 16_000}}, 2
    return on_policy | {"workflow": flow}, dice.choice((2, 3))


def write_dataset(path: Path, name: str) -> None:
    """Made-up transitions in the form of an environment. JAX is not started: jobs are forked from here."""
    size, actions = SPACES[name]
    spec = EnvSpec(name, (size,), np.dtype(np.float32), actions, (), None, None, 500)
    numbers, rows = np.random.default_rng(0), 1000
    obs = numbers.normal(size=(rows + 1, size)).astype(np.float32)
    last = np.arange(rows) % 50 == 49
    action = numbers.integers(actions, size=rows).astype(np.int32)
    reward = numbers.normal(size=rows).astype(np.float32)
    columns = Columns(obs[:-1], action, reward, last, np.zeros(rows, bool), np.arange(rows) // 50, obs[1:])
    parquet.write(path, columns, spec, {"env": {"name": name}})


class Job:
    """A training job: started, watched, and known by the processes of its ranks. One of `elastic` is its
    learner, whose exit code counts, and `ranks` - 1 actors, which are killed when it has ended."""

    def __init__(
        self, config: Path, folder: Path, ranks: int, limit: int | None = None, elastic: bool = False
    ) -> None:
        self.folder, self.ranks, self.elastic = folder, ranks, elastic
        launcher = [str(find_mpiexec()), "-n", str(ranks)] if ranks > 1 and not elastic else []
        program = [sys.executable, "-m", "jaxrl_hpc.cli.main"]
        command = [*launcher, *program, "train", str(config)]
        command += ["--run-dir", str(folder), "--resume"]
        if elastic:
            actor = shlex.join([*program, "actor", str(folder), "--wait", str(HANG_SECONDS)])
            text = ELASTIC.format(learner=shlex.join(command), actors=f"{actor} &\n" * (ranks - 1))
            command = ["bash", "-c", text]
        self.log = folder.with_name(f"{folder.name}.log")
        self._output = open(self.log, "w")  # noqa: SIM115 (closed when the job has ended)
        self._steps_before = newest(folder)
        self._begun = time.time()

        def limited() -> None:
            if limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        self.process = subprocess.Popen(
            command, stdout=self._output, stderr=subprocess.STDOUT, cwd=folder.parent,
            env=_environment() | {"PYTHONPATH": str(ROOT)}, start_new_session=True, preexec_fn=limited,
        )  # fmt: skip

        atexit.register(self.close)

    def wait_until_it_trains(self) -> bool:
        """False if it ended before."""
        end = time.monotonic() + HANG_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            steps = newest(self.folder)
            if steps is not None and (self._steps_before is None or steps > self._steps_before):
                return True
            time.sleep(0.02)  # between looks
        return False

    def pids(self) -> list[int]:
        """Of the ranks, in their order, by what they wrote about themselves since this start."""
        if self.elastic:
            return [process.pid for process in processes(self.folder)]
        if self.ranks == 1:
            return [self.process.pid]
        found = []
        for path in sorted((self.folder / "ranks").glob("*.json")):
            try:
                if path.stat().st_mtime >= self._begun:
                    found.append(int(json.loads(path.read_text())["pid"]))
            except (OSError, ValueError, KeyError):
                continue
        return found

    def ended(self, seconds: float) -> int | None:
        """The exit code; None if it has not ended in time, in which case it is killed."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._output.flush()

    def close(self) -> list[str]:
        """Ends what is left of the job; what that was, if the job had ended by itself."""
        atexit.unregister(self.close)
        had_ended = self.process.poll() is not None
        left = survivors(self.folder) if had_ended else []
        if not had_ended:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for process in processes(self.folder):
            with_suppressed(process.kill)
        self._output.close()
        return left

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def with_suppressed(action: Callable[[], Any]) -> None:
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        action()


def processes(folder: Path) -> list[psutil.Process]:
    """Whose command line names this run."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if str(folder) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def survivors(folder: Path, seconds: float = 15.0) -> list[str]:
    """Processes of a run that has ended that are still there after a while."""
    end = time.monotonic() + seconds
    while (left := processes(folder)) and time.monotonic() < end:
        time.sleep(0.1)  # launchers take a moment
    return [f"process {p.pid}" for p in left]


def newest(folder: Path) -> int | None:
    for place in (folder / "checkpoints" / "shared", folder / "checkpoints"):
        step = Checkpointer(place).latest()
        if step is not None:
            return step
    return None


def strike(job: Job, fault: str, dice: random.Random) -> str:
    """Do something to a running job; what happened, empty if nothing."""
    pids = job.pids()
    if not pids:
        return ""
    pid = dice.choice(pids)
    try:
        if fault == SLOW:
            for _ in range(20):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.05)  # how slow it is
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.02)
        elif fault == "SIGSTOP":
            os.kill(pid, signal.SIGSTOP)
            if (
                dice.random() < 0.5 or job.ranks == 1 or job.elastic
            ):  # it goes on after a while; else the watchdog ends the job
                time.sleep(dice.uniform(0.1, 3.0))
                os.kill(pid, signal.SIGCONT)
                return fault + GOES_ON
        elif job.ranks > 1 and dice.random() < 0.2:
            os.killpg(job.process.pid, getattr(signal, fault))  # the launcher too
            return fault + WHOLE
        else:
            os.kill(pid, getattr(signal, fault))
    except ProcessLookupError:
        return ""
    return fault


ENDS_IT = ("SIGKILL", "SIGTERM", "SIGUSR1")


def endure(workflow: str, seed: int, work: Path, faults: int = 3) -> Outcome:
    """A case: a run with faults against one without, or against its own record."""
    dice = random.Random(f"{workflow}:{seed}")
    case, began = f"{workflow}:{seed}", time.monotonic()
    data, ranks = drawn(workflow, dice)
    folder = work / f"{workflow}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config, run = folder / "config.yaml", folder / "run"
    config.write_text(yaml.safe_dump(data))
    if workflow == "offline":
        write_dataset(folder / DATASET, data["env"]["name"])
    elastic = workflow == "elastic"
    done: list[str] = []

    def outcome(verdict: str, text: str = "") -> Outcome:
        what = f"{'; '.join(done)}: {text}"
        return Outcome("kills", workflow, case, verdict, time.monotonic() - began, what, tuple(done))

    def start_and_end(job: Job, seconds: float) -> tuple[int | None, Outcome | None]:
        """(exit code, what is wrong with how it ended)."""
        code = job.ended(seconds)
        text = job.text()
        left = job.close()
        if code is None:
            return None, outcome("HANG", f"no end within {seconds:.0f} s: {text[-500:]}")
        if "Traceback" in text:
            return code, outcome("TRACEBACK", text[text.index("Traceback") :][:1500])
        return code, outcome("LEFTOVER", ", ".join(left)) if left else None

    for _ in range(faults):
        job = Job(config, run, ranks, elastic=elastic)
        hit, early, fault = "", dice.random() < 0.2, dice.choice(FAULTS)
        if early or job.wait_until_it_trains():
            time.sleep(dice.uniform(0.0, 8.0 if early else 0.6))  # when to strike
            hit = strike(job, fault, dice) if job.process.poll() is None else ""
            done += [hit] if hit else []
        ends = hit and fault in ENDS_IT and not elastic  # it may have been an actor
        code, wrong = start_and_end(job, END_SECONDS + DEADLINE if ends else HANG_SECONDS)
        remove_leftovers()
        if wrong:
            return wrong
        if code == 2:
            return outcome("LOST", f"refused to resume: {job.text()[-500:]}")
        if code == 0:
            break
    else:
        job = Job(config, run, ranks, elastic=elastic)
        code, wrong = start_and_end(job, HANG_SECONDS)
        if wrong or code != 0:
            return wrong or outcome("LOST", f"the last start ended with {code}: {job.text()[-800:]}")
    if workflow in EXACT:
        whole = Job(config, folder / "whole", 1)
        code, wrong = start_and_end(whole, HANG_SECONDS)
        if wrong or code != 0:
            return wrong or outcome("LOST", f"the reference ended with {code}: {whole.text()[-800:]}")
        problem = different(run, folder / "whole")
    else:
        problem = unaccounted(run, workflow)
    if not problem:
        shutil.rmtree(folder)
    return (
        outcome("LOST", problem) if problem else outcome("equal bits" if workflow in EXACT else "accounted")
    )


def different(run: Path, whole: Path) -> str:
    """What is not the same in two runs; empty if all is."""
    sums = [json.loads((path / "summary.json").read_text())["params_sha256"] for path in (run, whole)]
    if sums[0] != sums[1]:
        return f"params {sums[0][:12]} instead of {sums[1][:12]}"
    rows = [str(without_clock(read_metrics(path)).to_pylist()) for path in (run, whole)]
    return "" if rows[0] == rows[1] else "metrics differ"


def unaccounted(run: Path, workflow: str) -> str:
    """What a run's own record does not add up to; empty if it does."""
    rows = [row for row in read_metrics(run).to_pylist() if row["kind"] == "train"]
    steps = [row["env_steps"] for row in rows]
    if steps != sorted(set(steps)):
        return "metrics have repeated or unordered rows"
    if not (run / "summary.json").is_file():
        return "there is no summary"
    done = [row["iteration"] for row in rows]
    slopes = {(b - a) / (j - i) for a, b, i, j in zip(steps, steps[1:], done, done[1:], strict=False)}
    if len(slopes) > 1:
        return f"iterations have different numbers of environment steps: {sorted(slopes)[:5]}"
    if workflow in ("gossip", "parameter_server"):
        return exchanges_unaccounted(run, done[-1])
    flow = yaml.safe_load((run / "config.yaml").read_text())["workflow"]
    unroll = flow["num_envs"] * flow["unroll_length"]
    _, leaves, numbers = Checkpointer(run / "checkpoints" / "actors-0000").load()
    kept = {name.strip("[']"): leaf for name, leaf in leaves.items()} | numbers
    taken, dropped, lost = (int(kept[name]) for name in ("taken", "dropped", "lost"))
    if workflow == "elastic":
        lost = 0  # unrolls of killed actors that were not acknowledged: they are made again
    if lost or (taken - dropped) * unroll != steps[-1]:
        return f"{taken} unrolls taken, {dropped} dropped, {lost} lost in {steps[-1]} environment steps"
    return unrolls_unaccounted(run, taken) if workflow in RECORDED else ""


def unrolls_unaccounted(run: Path, taken: int) -> str:
    """Every actor's unrolls are in the schedule once, up to some number."""
    lines = file_of(run, 0).read_text().splitlines()[1:]
    entries = [tuple(map(int, line.split(","))) for line in lines]
    if len({entry[:2] for entry in entries}) != len(entries):
        return "an unroll was used twice"
    for actor, number in Counter(entry[0] for entry in entries).items():
        if sorted(entry[1] for entry in entries if entry[0] == actor) != list(range(number)):
            return f"unrolls of actor {actor} are missing"
    return "" if taken == len(entries) else f"{taken} unrolls taken, {len(entries)} written down"


def exchanges_unaccounted(run: Path, iterations: int) -> str:
    """Every exchange is in the schedule of one rank, once."""
    numbers = []
    for path in run.glob("schedule-*.csv"):
        for line in path.read_text().splitlines()[1:]:
            rank, _, number, _ = map(int, line.split(","))
            if path == file_of(run, rank):  # else a neighbour that gossip read from
                numbers.append(number)
    if numbers and sorted(numbers) == list(range(len(numbers))) and len(numbers) % iterations == 0:
        return ""
    return f"{iterations} iterations, {len(numbers)} exchanges written down, {len(set(numbers))} different"


def full_disk(seed: int, work: Path) -> Outcome:
    """A run on a disk that is full, then on one that is not: one sentence, then equal bits."""
    dice = random.Random(f"disk:{seed}")
    began, case = time.monotonic(), f"disk:{seed}"
    data, _ = drawn("fused", dice)
    data["run"] |= {"total_env_steps": 8000, "tensorboard": dice.random() < 0.5}
    folder = work / f"disk-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config, run = folder / "config.yaml", folder / "disk" / "run"
    config.write_text(yaml.safe_dump(data))
    run.parent.mkdir()
    size = int(2 ** dice.uniform(12, 19))
    mounted = os.geteuid() == 0 and mount(run.parent, size)

    def outcome(verdict: str, text: str = "") -> Outcome:
        kind, fault = ("tmpfs", "full disk") if mounted else ("limit", "limit on the size of files")
        return Outcome("full disks", kind, case, verdict, time.monotonic() - began, text, (fault,))

    try:
        first = Job(config, run, 1, None if mounted else size)
        first_code = first.ended(HANG_SECONDS)
        text = first.text()
        first.close()
        if first_code is None:
            return outcome("HANG", text[-500:])
        if "Traceback" in text or first_code not in (0, 2):
            return outcome("TRACEBACK", f"code {first_code}: {text[-1000:]}")
        if mounted and subprocess.run(["mount", "-o", "remount,size=200m", str(run.parent)]).returncode:
            return outcome("ok", "the disk could not be made larger")
        again = Job(config, run, 1)
        code, text = again.ended(HANG_SECONDS), again.text()
        again.close()
        if code != 0:
            return outcome("HANG" if code is None else "LOST", f"code {code} afterwards: {text[-600:]}")
        whole = Job(config, folder / "whole", 1)
        whole.ended(HANG_SECONDS)
        whole.close()
        problem = different(run, folder / "whole")
        return outcome("LOST", problem) if problem else outcome("equal bits")
    finally:
        if mounted:
            subprocess.run(["umount", str(run.parent)])


def mount(folder: Path, size: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


def damaged(seed: int, work: Path) -> Outcome:
    """A run that is stopped, damaged and resumed: refused with nothing changed, or equal bits."""
    dice = random.Random(f"damage:{seed}")
    began, case = time.monotonic(), f"damage:{seed}"
    data, _ = drawn("fused", dice)
    folder = work / f"damage-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config, run = folder / "config.yaml", folder / "run"
    config.write_text(yaml.safe_dump(data))
    first = Job(config, run, 1)
    if first.wait_until_it_trains():
        time.sleep(dice.uniform(0.3, 1.0))  # some more checkpoints
        with_suppressed(lambda: os.kill(first.process.pid, signal.SIGKILL))
    first.ended(HANG_SECONDS)
    first.close()
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name not in ("run.lock", ".jaxrl-hpc-run"))
    chosen = dice.sample(files, min(len(files), dice.choice((1, 1, 2))))
    what, faults = "; ".join(damage_file(dice, path) for path in chosen), ("damaged file",) * len(chosen)

    def outcome(verdict: str, text: str = "") -> Outcome:
        seconds = time.monotonic() - began
        return Outcome("damaged files", "fused", case, verdict, seconds, f"{what}: {text}", faults)

    before = {p for p in run.rglob("*") if p.is_file()}
    again = Job(config, run, 1)
    code, text = again.ended(HANG_SECONDS), again.text()
    again.close()
    if code is None:
        return outcome("HANG", text[-500:])
    if "Traceback" in text:
        return outcome("TRACEBACK", text[-1000:])
    if code == 2:
        lost = [p.name for p in before if not os.path.lexists(p) and p.parent.name != "ranks"]
        return outcome("LOST", f"removed {lost}") if lost else outcome("refused", text[-300:])
    if code != 0:
        return outcome("TRACEBACK", f"code {code}: {text[-800:]}")
    whole = Job(config, folder / "whole", 1)
    whole.ended(HANG_SECONDS)
    whole.close()
    problem = different(run, folder / "whole")
    if not problem:
        shutil.rmtree(folder)
    return outcome("LOST", problem) if problem else outcome("equal bits")
