"""Try to break it: random faults and generated bad inputs, every outcome classified.

    python scripts/chaos.py --minutes 60                  everything, in turn
    python scripts/chaos.py --inputs 600                  bad inputs only
    python scripts/chaos.py --kills 20 --workflows async,rma
    python scripts/chaos.py --soak 20                     20 minutes each of fused, async, rma_queue
    python scripts/chaos.py --case rma_queue:70000012     one case again, with its whole text
    python scripts/chaos.py --again                       the cases of the record that ended with a fault
    python scripts/chaos.py --slice                       what CI runs: fixed seed, answers may be late

Exit code 1 if any outcome is a fault of the program: HANG, TRACEBACK, LATE, LEFTOVER, LOST. Seeds are shown.
Results are added to docs/results/chaos.json and chaos.md; --output chooses another folder, --no-record none.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import chaos_inputs
import chaos_record
from chaos_inputs import KINDS, Worker, ask_command
from chaos_record import Outcome

ROOT = Path(__file__).resolve().parents[1]
STRIDE = 1_000_000  # seeds of one invocation
REAL_EVERY = 25  # of so many refused inputs one is also given to the real command
# how often a kind of input comes: slow ones more seldom
WEIGHTS = {"schema": 5, "yaml": 5, "override": 3, "sweep": 3, "arguments": 2, "run": 4, "schedule": 1,
           "recording": 2, "surrogate": 1, "bundle": 2, "dataset": 4, "actors.json": 1}  # fmt: skip
SLICE = {"inputs": 100, "seed": 20}


def input_outcomes(worker: Worker, cases: Iterator[tuple[str, int]]) -> Iterator[Outcome]:
    """Answers to bad inputs; some of the refused ones also by the real command."""
    refused = 0
    for kind, seed in cases:
        answer, command = worker.ask(kind, seed)
        yield Outcome("bad inputs", kind, f"{kind}:{seed}", answer.verdict, answer.seconds, answer.text)
        if answer.verdict != "refused" or not command or any("\0" in word for word in command):
            continue
        refused += 1
        if refused % REAL_EVERY == 1:
            real = ask_command(command, worker.folder)
            name = f"{kind}:{seed}"
            yield Outcome("bad inputs", "by the real command", name, real.verdict, real.seconds, real.text)


def input_cases(seed: int) -> Iterator[tuple[str, int]]:
    number = 0
    while True:
        for kind in KINDS:
            for _ in range(WEIGHTS[kind]):
                yield kind, seed * STRIDE + number
                number += 1


def fault_outcomes(seed: int, work: Path, workflows: tuple[str, ...]) -> Iterator[Outcome]:
    """Every workflow in turn; the seed says which is the first, so that short invocations differ."""
    import chaos_kills

    number, turn = seed * STRIDE, seed % len(workflows)
    workflows = workflows[turn:] + workflows[:turn]
    while True:
        for workflow in workflows:
            yield chaos_kills.endure(workflow, number, work)
            number += 1
        if len(workflows) > 1:
            yield chaos_kills.full_disk(number, work)
            yield chaos_kills.damaged(number, work)


def one_case(text: str, work: Path) -> Outcome:
    """The case of a name, with everything kept."""
    import chaos_kills

    kind, _, number = text.partition(":")
    if kind in KINDS:
        worker = Worker(work / "inputs")
        answer, command = worker.ask(kind, int(number))
        worker.close()
        print("command: jaxrl-hpc", *command)
        return Outcome("bad inputs", kind, text, answer.verdict, answer.seconds, answer.text)
    if kind == "disk":
        return chaos_kills.full_disk(int(number), work)
    if kind == "damage":
        return chaos_kills.damaged(int(number), work)
    if kind in chaos_kills.WORKFLOWS:
        return chaos_kills.endure(kind, int(number), work)
    if kind == "soak":
        import chaos_soak

        return chaos_soak.soak(number, 20.0, work)
    raise SystemExit(f"there is no kind of case {kind!r}: {', '.join([*KINDS, *chaos_kills.WORKFLOWS])}")


def show(outcome: Outcome, whole: bool = False) -> None:
    text = outcome.text if outcome.bad or whole else " ".join(outcome.text.split())[:100]
    print(f"{outcome.verdict:10} {outcome.case:28} {outcome.seconds:6.1f} s  {text}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="a fifth of it bad inputs, the rest faults")
    parser.add_argument("--inputs", type=int, default=0, metavar="N", help="bad inputs")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="cases with faults")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="each of three workflows")
    parser.add_argument("--workflows", help="for --kills and --soak: only these, with commas")
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock")
    parser.add_argument("--case", metavar="KIND:SEED", help="repeat one case")
    parser.add_argument(
        "--again", action="store_true", help="repeat the record's open faults, soaks excepted"
    )
    parser.add_argument("--slice", action="store_true", help="the fixed part that CI runs")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder of the record")
    parser.add_argument("--no-record", action="store_true", help="print only")
    return parser.parse_args()


def main() -> int:
    args = parse()
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that jobs are ended
    seed = args.seed if args.seed is not None else SLICE["seed"] if args.slice else int(time.time()) % 10_000
    work = Path(tempfile.mkdtemp(prefix="chaos-"))
    os.environ["XDG_STATE_HOME"] = str(work / "state")
    os.environ.setdefault("JAXRL_HPC_CACHE", str(Path(tempfile.gettempdir()) / "chaos_cache"))
    print(f"seed {seed}, work in {work}", flush=True)
    if args.case:
        outcome = one_case(args.case, work)
        show(outcome, whole=True)
        return int(outcome.bad)
    if args.slice:
        chaos_inputs.LATE_SECONDS = float("inf")  # no test depends on a clock
    began, outcomes, code = time.monotonic(), [], chaos_record.commit()
    worker = Worker(work / "inputs")

    def take(found: Iterator[Outcome], count: float, seconds: float = float("inf")) -> None:
        end, number = time.monotonic() + seconds, 0
        while number < count and time.monotonic() < end:
            outcomes.append(next(found))
            show(outcomes[-1])
            number += 1

    inputs = SLICE["inputs"] if args.slice else args.inputs
    try:
        if args.minutes or inputs:
            seconds = 12 * args.minutes if args.minutes else float("inf")
            found = input_outcomes(worker, input_cases(seed))
            take(found, inputs or float("inf"), seconds)
        worker.close()
        if args.minutes or args.kills or args.slice:
            import chaos_kills

            chosen = tuple(args.workflows.split(",")) if args.workflows else chaos_kills.WORKFLOWS
            chosen = ("fused",) if args.slice else chosen
            seconds = 48 * args.minutes if args.minutes else float("inf")
            take(
                fault_outcomes(seed, work, chosen), args.kills or (1 if args.slice else float("inf")), seconds
            )
        if args.again:
            names = [case for case in chaos_record.open_cases(args.output) if not case.startswith("soak:")]
            repeated = (one_case(name, work)._replace(group=chaos_record.AGAIN) for name in names)
            take(repeated, len(names))
        if args.soak:
            import chaos_soak

            chosen = tuple(args.workflows.split(",")) if args.workflows else chaos_soak.WORKFLOWS
            take((chaos_soak.soak(name, args.soak, work) for name in chosen), len(chosen))
    finally:
        worker.close()
        if outcomes and not args.no_record:
            entry = chaos_record.entry_of(outcomes, seed, (time.monotonic() - began) / 60, code)
            chaos_record.write(args.output, entry)
    bad = [outcome for outcome in outcomes if outcome.bad]
    print(f"{len(outcomes)} cases, {len(bad)} faults of the program, seed {seed}")
    if not bad:
        shutil.rmtree(work)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
