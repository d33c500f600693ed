"""Lists the pages of docs/results/ in docs/results/index.md: title and first sentence of each.

python scripts/studies/index.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from pairs import without_run  # beside this file

GROUPS = {  # heading -> names of its pages; others are learning results
    "ExaBooster": r"exabooster",
    "Actors, learners, ranks": r"asynchronous|cray|elastic|impala|learners|scaling|stretch|transports|vtrace|"
    r"wait|window|workflows",
    "Questions about methods": r".*dyna_q|dueling|ddpg|intervals|memory|minatar_evaluation|"
    r"pendulum_(a2c|mbpo)|random|recurrent",
    "Robustness and speed of parts": r"chaos|packing|replay|cahn_hilliard_accuracy",
}
LEARNING = "Learning results"
COLUMNS = """
## What the columns mean
In the tables of learning results:

- **score**: the final evaluation, greedy episodes after the last update. A seed's figure is its mean over
  episodes; the score is their interquartile mean (IQM) with a 95 % interval over seeds, or mean and range of
  fewer than five seeds ([how intervals are made](intervals.md)).
- **reached at**: environment steps at which the score of the evaluations during the run first met the target.
- **over the run**: the same as the score, from the mean of a seed's evaluations during the run.
- **training return**: mean of training episodes, with exploration, over the last tenth of the run.

## Runs of earlier versions
Pages with commands name the commit of every entry, others at most the commits of all their runs together.
What has changed since in a way that learning may notice:

- PPO before `58f988f`: steps of an unroll were shuffled less evenly, so that neighbours met in a minibatch
  more often, with one copy per shard almost always. Not run again since: PPO on the pages of MinAtar,
  LunarLander, Breakout (Atari), MemoryChain, the block copolymer film, the plant fits of ExaBooster, and
  ExaBooster with continuous actions.
- Intervals before `f1aac49` are percentile bootstraps, which are [a little too narrow](intervals.md); rows of
  runs that were not made again keep them.
- The score of a single seed was the interquartile mean of its episodes, which leaves out the worst quarter:
  in [asynchronous agents](asynchronous.md) and in "Nondeterminism" of [workflows](workflows.md).
"""
NAMED_COMMIT = r"`[0-9a-f]{7,10}`|\b[Cc]ommits?\b"
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def describe(page: Path) -> tuple[str, str]:
    """The page's title and the first sentence under it that is not about how it was made."""
    lines = page.read_text().splitlines()
    title = next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), page.stem)
    text = "\n".join("" if line.startswith("#") else line for line in lines)
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n")]
    paragraphs = [re.sub(r"^Made by `[^`]*`\. ", "", p) for p in paragraphs]
    aside = ("Made by", "Written by", "See ")
    plain = [p for p in paragraphs if p and p[0] not in "#|!<-`" and not p.startswith(aside)]
    sentence = re.split(r"(?<=[.:])\s", plain[0])[0].rstrip(":.") if plain else ""
    sentence = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)  # links of the page do not work from here
    return title, sentence


def group_of(name: str) -> str:
    return next((heading for heading, names in GROUPS.items() if re.match(names, name)), LEARNING)


def index(folder: Path) -> str:
    rows: dict[str, list[str]] = {heading: [] for heading in (LEARNING, *GROUPS)}
    for page in sorted(path for path in folder.glob("*.md") if path.name != "index.md"):
        title, sentence = describe(page)
        rows[group_of(page.stem)].append(f"| [{title}]({page.name}) | {sentence.replace('|', '∣')} |")
    text = "# Results\n\nOne page per study, each written by a script in `scripts/studies/`; this list by\n"
    text += "`python scripts/studies/index.py`.\n"
    for heading, lines in rows.items():
        if lines:
            table = "\n".join(["| study | summary |", "|---|---|", *lines])
            text += f"\n## {heading}\n\n{table}\n"
    return text + COLUMNS + without_commit(folder) + configs_without_run(folder)


def without_commit(folder: Path) -> str:
    pages = [path for path in sorted(folder.glob("*.md")) if path.name != "index.md"]
    found = [f"[{page.stem}]({page.name})" for page in pages if not re.search(NAMED_COMMIT, page.read_text())]
    return f"\nPages that name no commit: {', '.join(found)}.\n" if found else ""


def configs_without_run(folder: Path) -> str:
    found = without_run(folder)
    names = ", ".join(f"`{name}`" for name in found)
    text = f"""
## Configs without a recorded run
Their settings are common ones or those of a sibling, but nothing on these pages shows that they learn:
{names}.
"""
    return text if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether the list is up to date")
    args = parser.parse_args()
    target, text = RESULTS / "index.md", index(RESULTS)
    if args.check:
        current = target.read_text() if target.exists() else ""
        if current != text:
            print("docs/results/index.md is out of date: python scripts/studies/index.py")
        return int(current != text)
    target.write_text(text)
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
