"""What the scripts of studies compute themselves."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts" / "studies"))

import comparison
import learners
import learners_page
import learning
import pairs
import simulators
from comparison import Comparison
from kept_rows import kept_rows
from page_table import with_head


def seeds(mean: float, count: int = 8, key: int = 0) -> list[float]:
    return list(mean + np.random.default_rng(key).normal(size=count))


@pytest.mark.parametrize(("shift", "verdict"), [(5.0, "better"), (-5.0, "**worse**")])
def test_a_difference_beyond_the_spread_of_seeds_is_shown(shift: float, verdict: str) -> None:
    found = comparison.difference(seeds(shift), seeds(0.0, 12, 1))
    assert found.low < found.value < found.high
    assert abs(found.value - shift) < 1 and comparison.verdict(found) == verdict


def test_a_difference_within_the_spread_is_not() -> None:
    found = comparison.difference(seeds(0.1), seeds(0.0, key=1))
    assert found.low < 0 < found.high and comparison.verdict(found) == "no difference shown"


def test_controls_that_have_not_run_are_left_out() -> None:
    two = [Comparison("a", "b", "one thing"), Comparison("a", "c", "another")]
    values = {"a": seeds(1.0), "b": seeds(0.0)}
    lines = comparison.table(two, values, values, 1)
    assert len(lines) == 3 and "one thing" in lines[2]
    assert comparison.table(two[1:], values, values, 1) == []


def test_few_seeds_have_no_interval_to_judge_by() -> None:
    found = comparison.difference(seeds(5.0, 4), seeds(0.0, key=1))
    assert np.isnan(found.low) and comparison.verdict(found) == "too few seeds for an interval"
    assert "[" not in comparison.text(found, 1) and "[" not in comparison.chance(seeds(5.0, 4), seeds(0.0))


def test_rows_of_runs_that_are_not_at_hand_are_kept(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| entry | seeds | IQM [95 % interval] | time |\n|---|---|---|---|\n| a | 8 | 1 [0, 2] | 3 s |\n"
        "| b | 8 | 5 | 4 s |\n\n| entry | command | commit |\n|---|---|---|\n| a | `x` | `1234` |\n"
    )
    found = kept_rows(page, ("entry", "seeds", "updates", "score [interval]"), ["a", "b", "c"])
    assert found == {"a": ("| a | 8 | – | 1 [0, 2] |", "| a | `x` | `1234` |")}  # b has no command
    assert kept_rows(tmp_path / "none.md", ("entry",), ["a"]) == {}


# drawn from data of the repository, beside those of docs/data/curves; test_figures.py does it
DRAWN = {
    "atari", "cray_resize", "exabooster_fits", "intervals", "packing", "replay", "scaling_dqn_ahead",
    "scaling_dqn_weak", "scaling_ppo_strong", "scaling_ppo_weak", "window_collisions",
    "workflows", "workflows_solve",
}  # fmt: skip
SIMULATED = {"exabooster_reference_episode", "exabooster_statistics"}  # without training: drawn when wanted


def test_pictures_of_results_are_shown_and_those_without_their_data_are_called_earlier_ones() -> None:
    docs = Path(__file__).resolve().parents[1] / "docs"
    drawn = DRAWN | SIMULATED | {path.stem for path in (docs / "data" / "curves").glob("*.json")}
    shown = set()
    for page in (docs / "results").glob("*.md"):
        text = page.read_text()
        pictures = set(re.findall(r"!\[[^\]]*\]\(([^)/]+)\)", text))
        assert all((page.parent / picture).exists() for picture in pictures), page.name
        earlier = {picture for picture in pictures if Path(picture).stem not in drawn}
        assert bool(earlier) == ("no longer stored" in text), (page.name, earlier)
        shown |= pictures
    files = {path.name for kind in ("png", "svg") for path in (docs / "results").glob(f"*.{kind}")}
    assert files == shown


@pytest.mark.parametrize("script", [learning, simulators], ids=lambda script: script.__name__)
def test_pages_say_what_their_scripts_say(script) -> None:
    """After a change of a description: python scripts/studies/learning.py --text"""
    for name in script.STUDIES:
        page = script.RESULTS / f"{name}.md"
        if page.exists():
            assert with_head(page.read_text(), script.head(name)) == page.read_text(), name


def test_configs_without_a_run_are_listed_until_they_have_one(tmp_path) -> None:
    before = pairs.without_run(tmp_path)
    assert {"cartpole_dqn", "workflows/cartpole_a3c"} <= set(before)
    (tmp_path / "page.md").write_text(
        "`jaxrl-hpc train cartpole_dqn run.seeds=8` and `workflows/cartpole_a3c`"
    )
    found = pairs.without_run(tmp_path)
    assert set(before) - set(found) == {"cartpole_dqn", "workflows/cartpole_a3c"}


def test_rows_of_commands_for_each_seed_are_kept(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| entry | IQM [95 % interval] |\n|---|---|\n| a | 1 |\n\n"
        "| entry | command, of each seed | commit |\n|---|---|---|\n| a | `x` | `1234` |\n"
    )
    assert kept_rows(page, ("entry", "score [interval]"), ["a"]) == {
        "a": ("| a | 1 |", "| a | `x` | `1234` |")
    }


def test_the_page_of_several_learners_says_how_much_is_recorded() -> None:
    text, recorded = learners_page.PAGE.read_text(), set(learners.known()["cells"])
    names = {group: {cell.name for cell in cells()} for group, cells in learners.GROUPS.items()}
    assert f"**{len(recorded)} of {len(set().union(*names.values()))} cells are recorded**" in text
    for group, wanted in names.items():
        done = len(wanted & recorded)
        assert f"| `{group}` | {len(wanted)} | {done} | {len(wanted) - done} |" in text


@pytest.mark.parametrize(
    ("speed", "others", "found", "verdict"),
    [
        (1_500.0, 0.0, "1.50 ×", "met"),
        (1_400.0, 0.0, "1.40 ×", "missed"),
        (1_500.0, 0.5, "1.50 ×", "undecided: other work used up to 0.5 cores"),
        (None, 0.0, "not measured", "–"),
    ],
)
def test_a_goal_is_judged_by_two_cells_of_a_calm_machine(
    speed: float | None, others: float, found: str, verdict: str
) -> None:
    cells = {"speed async own 1+8 20ms": {"steps_per_second": 1_000.0, "other_cores": 0.0}}
    if speed:
        cells["speed async own 8+8 20ms"] = {"steps_per_second": speed, "other_cores": others}
    (line,) = (line for line in learners_page.goals_table(cells, None) if "8+8" in line)
    assert line.split(" | ")[3].startswith(found) and line.endswith(f"| {verdict} |")
