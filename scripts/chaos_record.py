"""The record of scripts/chaos.py: docs/results/chaos.json grows with every invocation, chaos.md shows it."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GOOD = {
    "ok": "accepted, and did what it says",
    "refused": "one sentence and exit code 2, or the documented exception; of runs with damaged files also: "
    "no file was removed (what is in the others is not compared)",
    "equal bits": "parameters and metrics as of a run that nothing happened to",
    "accounted": "finished; metrics without repeats, steps in proportion to iterations; every unroll (of "
    "parameter_server and gossip: exchange; of elastic: acknowledged unroll) used once. Resumed runs of "
    "central_inference have no schedule: their unrolls are counted",
}
BAD = {
    "HANG": "no end within the deadline",
    "TRACEBACK": "an exception that is not documented, or a crash",
    "LATE": "an answer after more than 10 s, or an end later than the deadline of the watchdog allows",
    "LEFTOVER": "processes left behind",
    "LOST": "files, rows or unrolls missing, doubled or different",
}
AGAIN = "repeated cases"
BY_NAME = ("soak", AGAIN)  # groups of which every case is kept, not only the faults
# kinds of faults in records that were made before they were counted
IMPLIED = {"full disks": "full disk", "damaged files": "damaged file"}
UNKNOWN = "kind not recorded"
SOAK = re.compile(r"(?P<minutes>[\d.]+) minutes(, (?P<steps>\d+) environment steps)?; (?P<memory>.*)")

NOT_RECORDED = (
    "Two other invocations are missing from the record: one of 650 bad inputs that found one fault, and one "
    "that was stopped after a fault. Those faults are mended. The package was changed while the kills of "
    "seed 7 ran: their commit is that of the beginning. Up to seed 8296 accounting of dyna, "
    "parameter_server and central_inference looked at metrics only. The soaks of commit 0c576dd38f shared "
    "two cores with much other work; that of async at c938edc712 had so little of them that it made a tenth "
    "of the steps. At f74fab76e2 that of rma_queue had not compiled its programs after ten minutes: some "
    "fifty processes shared the two cores. The invocation at 866e1ba560, a commit that is not in the "
    "history, has one of its two soaks. For the growth of ranks of async and rma_queue, at 0c576dd38f about "
    "36 bytes an unroll in the learner, two causes were found and mended: up to 866e1ba560 metrics were "
    "written with an allocator that keeps memory, and up to a627624579 UCX kept a note of 144 bytes for "
    "every piece of memory that was returned to the system (tests/mpi/test_memory.py). Between medians 10 "
    "minutes apart, in soaks of 20 minutes, the learner of rma_queue grew by 5.43 % with both (866e1ba560), "
    "by 1.39 % without the first (a627624579) and by 0.52 % without either (e05f1d5a95); that of async by "
    "0.66 % without the first (a627624579), and it has not been soaked since, nor has fused since "
    "0c576dd38f. The goal is 1 %; that nothing grows at all is not shown."
)


class Outcome(NamedTuple):
    """One case."""

    group: str  # a section of the page: bad inputs, kills, …
    kind: str  # a row of its table
    case: str  # repeats it: --case
    verdict: str
    seconds: float
    text: str = ""
    faults: tuple[str, ...] = ()  # kills, stops, … that were delivered, by name

    @property
    def bad(self) -> bool:
        return self.verdict in BAD


def commit() -> str:
    def ask(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    changed = ask("status", "--porcelain", "--untracked-files=no", "--", "jaxrl_hpc", "scripts")
    return ask("rev-parse", "--short=10", "HEAD") + ("-dirty" if changed else "")


def entry_of(outcomes: Iterable[Outcome], seed: int, minutes: float, code: str) -> dict[str, Any]:
    """One invocation, as it is kept."""
    groups: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        kinds = groups.setdefault(outcome.group, {})
        empty = {"cases": 0, "faults": 0, "by_kind": {}, "verdicts": {}, "slowest": 0.0}
        row = kinds.setdefault(outcome.kind, empty)
        row["cases"] += 1
        row["faults"] += len(outcome.faults)
        for fault in outcome.faults:
            row["by_kind"][fault] = row["by_kind"].get(fault, 0) + 1
        row["verdicts"][outcome.verdict] = row["verdicts"].get(outcome.verdict, 0) + 1
        row["slowest"] = round(max(row["slowest"], outcome.seconds), 2)
    named = [o for o in outcomes if o.bad or o.group in BY_NAME]
    cases = [{"case": o.case, "verdict": o.verdict, "text": o.text[-400:]} for o in named]
    command = shlex.join(["python", "scripts/chaos.py", *sys.argv[1:]])
    return {"command": command, "commit": code, "seed": seed, "minutes": round(minutes, 1),
            "groups": groups, "cases": cases}  # fmt: skip


def write(folder: Path, entry: dict[str, Any]) -> None:
    """Add an invocation to the record and write the page anew; several may run side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "chaos.json"
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        entries = json.loads(file.read() or "[]")
        entries.append(entry)
        file.truncate(0)
        file.write(json.dumps(entries, indent=1) + "\n")
        file.flush()
        (folder / "chaos.md").write_text(page(entries))


def page(entries: list[dict[str, Any]]) -> str:
    """All invocations, added up by section; then every fault that was found, and what became of it."""
    lines = [
        "# Chaos: kills, stops, full disks, damaged files, bad inputs",
        "",
        "Random faults and generated bad inputs, every outcome classified; each case can be repeated by its",
        "name: `python scripts/chaos.py --case NAME`. Written by `scripts/chaos.py` (`make chaos`), which",
        "adds every invocation to `chaos.json`.",
        "",
    ]
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for entry in entries:
        for group, kinds in entry["groups"].items():
            for kind, row in kinds.items() if group != AGAIN else ():
                groups.setdefault(group, {}).setdefault(kind, []).append(row)
    for group, kinds in groups.items():
        lines += [f"## {group[0].upper()}{group[1:]}", ""]
        lines += ["| kind | cases | faults | outcomes | slowest, s |", "|---|---|---|---|---|"]
        total: Counter[str] = Counter()
        for kind, rows in sorted(kinds.items()):
            verdicts = sum((Counter(row["verdicts"]) for row in rows), Counter())
            total += verdicts
            cases, faults = (sum(row[key] for row in rows) for key in ("cases", "faults"))
            slowest = max(row["slowest"] for row in rows)
            lines.append(f"| {kind} | {cases} | {faults or ''} | {_counted(verdicts)} | {slowest:.1f} |")
        faults = sum(row["faults"] for rows in kinds.values() for row in rows)
        lines.append(f"| all | {sum(total.values())} | {faults or ''} | {_counted(total)} | |")
        lines.append("")
    lines += _by_kind(groups)
    lines += ["## Outcomes", ""]
    lines += [f"- {name}: {text}" for name, text in (GOOD | BAD).items()]
    lines += ["", "Names in capitals are faults of the program.", "", "## Faults that were found", ""]
    lines += [
        "Each with the newest outcome of the same case (`python scripts/chaos.py --again` repeats those that",
        "are open). A case draws the same config and the same faults again; when they strike differs.",
        "",
        "| case | found | at commit | what | since then |",
        "|---|---|---|---|---|",
    ]
    for (case, verdict, code, text), since in histories(entries):
        lines.append(f"| {case} | {verdict} | {code} | {_cell(text)} | {since} |")
    lines += ["", *_soaks(entries)]
    lines += ["", "## Invocations", "", "| commit | seed | minutes | faults of the program | command |"]
    lines += ["|---|---|---|---|---|"]
    for entry in entries:
        faults = [c for c in entry["cases"] if c["verdict"] in BAD]
        bad = ", ".join(f"{c['case']} {c['verdict']}" for c in faults) or "none"
        row = (entry["commit"], entry["seed"], entry["minutes"], bad, f"`{entry['command']}`")
        lines.append(f"| {' | '.join(map(str, row))} |")
    lines += ["", NOT_RECORDED]
    return "\n".join(lines) + "\n"


def _by_kind(groups: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """How often what happened to what."""
    counts: dict[str, Counter[str]] = {}
    for group, kinds in groups.items():
        for kind, rows in kinds.items():
            for row in rows:
                found = row.get("by_kind") or {IMPLIED.get(group, UNKNOWN): row["faults"]}
                name = kind if group == "kills" else group
                counts.setdefault(name, Counter()).update({k: n for k, n in found.items() if n})
    total = sum(counts.values(), Counter())
    names = sorted(total, key=lambda name: (name == UNKNOWN, name))
    lines = [
        "## Faults by kind",
        "",
        "How many were delivered. A SIGSTOP without SIGCONT holds a rank for good.",
        "",
    ]
    lines += [f"| in | {' | '.join(names)} | all |", "|---" * (len(names) + 2) + "|"]
    for name, found in [*sorted((n, f) for n, f in counts.items() if f), ("all", total)]:
        cells = [str(found[kind] or "") for kind in names]
        lines.append(f"| {name} | {' | '.join(cells)} | {found.total()} |")
    return [*lines, ""]


def _soaks(entries: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Resident memory of soaks",
        "",
        "A soak of M minutes begins when the replay is full (at 864a72c264: when training begins). Its first",
        "quarter is not judged. In the other three quarters resident memory is read every 2 s, process by",
        "process, and the median of the first third of the readings is compared with that of the last third:",
        "the middles of these thirds are M / 2 apart. A growth is one over that time, and belongs to the",
        "commit of its row alone.",
        "",
        "| case | commit | outcome | minutes | minutes between the medians | environment steps | medians |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        for case in entry["cases"]:
            if not case["case"].startswith("soak:"):
                continue
            found = SOAK.fullmatch(case["text"])
            minutes = float(found["minutes"]) if found else None
            cells = [case["case"], entry["commit"], case["verdict"]]
            cells += [f"{minutes:g}", f"{minutes / 2:g}"] if minutes else ["", ""]
            cells += [found["steps"] or "", found["memory"]] if found else ["", case["text"]]
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return lines


def histories(entries: list[dict[str, Any]]) -> list[tuple[tuple[str, str, str, str], str]]:
    """((case, verdict, commit, text) of every fault in the record, newest later outcome of the same case)."""
    found = []
    for number, entry in enumerate(entries):
        for case in entry["cases"]:
            if case["verdict"] not in BAD:
                continue
            later = [(e["commit"], c["verdict"]) for e in entries[number + 1 :] for c in e["cases"]
                     if c["case"] == case["case"]]  # fmt: skip
            since = f"{later[-1][1]} at {later[-1][0]}" if later else "open: not repeated"
            found.append(((case["case"], case["verdict"], entry["commit"], case["text"]), since))
    return found


def open_cases(folder: Path) -> list[str]:
    """Names of cases whose newest outcome is a fault."""
    newest: dict[str, str] = {}
    for entry in json.loads((folder / "chaos.json").read_text()):
        newest |= {case["case"]: case["verdict"] for case in entry["cases"]}
    return [name for name, verdict in newest.items() if verdict in BAD]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]


def _counted(verdicts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(verdicts.items())) or "none"
