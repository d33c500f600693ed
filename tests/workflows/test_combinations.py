"""Every agent with every workflow, replay, storage and size does what it claims, or is refused in a sentence.

What runs is checked by its own metrics and parameters: all parameters move, windows have the steps that the
config claims (`window_used`), all of the replay can be drawn (`drawable`), every update has data
(`updates_used`), gradients are made of batches as large as claimed. Keys that are drawn once have a test of
their own (test_streams.py).
"""

from __future__ import annotations

import logging
import random
import re
from collections import defaultdict
from pathlib import Path

import jax
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.config import registry
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.runtime.trainer import idle_learning
from tests import small
from tests.mpi import launch
from tests.workflows import combinations, run_combination
from tests.workflows.combinations import Combination, everything

SENTENCE = re.compile(r"^(agent|replay|workflow|num_envs|dataset)\b[^\n]*$")
ALONE = ("fused", "offline", "sharded", "elastic")  # names of workflows that need no ranks


def refusal(found: Combination) -> str:
    """Empty if it is built."""
    try:
        build(configs.from_dict(combinations.data(found)))
    except UserError as error:
        return str(error)
    return ""


def sample(values: list, count: int, seed: int = 21) -> list:
    return random.Random(seed).sample(values, min(count, len(values)))


def accepted(alone: bool) -> list[Combination]:
    """By what stands in the tables alone, so that nothing is built when tests are collected."""
    names = combinations.WORKFLOWS
    chosen = [c for c in everything() if (names[c.workflow]["name"] in ALONE) == alone]
    return [c for c in chosen if c.agent_name not in combinations.ON_POLICY or c.replay == "default"]


def one_of_each(values: list[Combination], *names: str, seed: int = 0) -> list[Combination]:
    """Of those that agree in what is named, one: the rest of it is drawn."""
    groups: dict[tuple[str, ...], list[Combination]] = defaultdict(list)
    for found in values:
        groups[tuple(getattr(found, name) for name in names)].append(found)
    return [random.Random(f"{seed} {key}").choice(group) for key, group in groups.items()]


def test_all_components_are_combined() -> None:
    assert {label.split()[0] for label in combinations.AGENTS} == set(registry.AGENTS)
    assert {flow["name"] for flow in combinations.WORKFLOWS.values()} == set(registry.WORKFLOWS)
    assert {replay["name"] for replay in combinations.REPLAYS.values() if replay} == set(registry.REPLAYS)


def test_contributors_are_told_how_much_of_it_is_run() -> None:
    text = " ".join((Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text().split())
    assert f"{len(jobs_of_each_pair())} of {len(accepted(alone=False)):,} on ranks are run" in text
    assert f"{len(runs_whole())} of {len(accepted(alone=True)):,} in one process" in text


def check_builds(chosen: list[Combination]) -> None:
    refused = {found: text for found in chosen if (text := refusal(found))}
    for found, text in refused.items():
        assert SENTENCE.match(text), f"{found}: {text}"
    assert 0 < len(refused) < len(chosen)


def test_some_are_built_or_refused_in_a_sentence() -> None:
    check_builds(sample(list(everything()), 60))


@pytest.mark.full
def test_all_are_built_or_refused_in_a_sentence() -> None:
    check_builds(list(everything()))


def runs(found: Combination) -> bool:
    """Likely not refused: sizes that fit, and priorities that the replay and the agent know."""
    fits = found.sizes != "default" and found.workflow != "fused rated"
    return fits and (found.replay != "default" or found.agent_name in combinations.ON_POLICY)


CHOSEN = {
    label: sample([c for c in accepted(alone=True) if c.agent == label and runs(c)], 1, seed)[0]
    for seed, label in enumerate(combinations.AGENTS)
}


def runs_whole() -> list[Combination]:
    """One of every agent, workflow and replay, with sizes and storage drawn."""
    drawn = one_of_each(accepted(alone=True), "agent", "workflow", "replay")
    return [*CHOSEN.values(), *(c for c in drawn if c not in CHOSEN.values())]


QUICK = ("dqn", "recurrent_dqn", "ddpg", "td3", "pqn")  # the fewest that have all workflows


def tier(found: Combination) -> list[pytest.MarkDecorator]:
    """One of each workflow is in the quick tier, one of each agent and option in the full one."""
    if found != CHOSEN[found.agent]:
        return [pytest.mark.slow]
    return [] if found.agent in QUICK else [pytest.mark.full]


def test_all_workflows_without_ranks_are_in_the_quick_tier() -> None:
    workflows = {combinations.WORKFLOWS[CHOSEN[agent].workflow]["name"] for agent in QUICK}
    assert workflows == set(ALONE)


@pytest.mark.parametrize("found", [pytest.param(c, marks=tier(c), id=str(c)) for c in runs_whole()])
def test_it_does_what_it_claims(found: Combination) -> None:
    try:
        assert run_combination.here(found) == []
    except UserError as error:
        assert SENTENCE.match(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("agent", list(combinations.AGENTS))
def test_the_others_learn_from_batches_as_claimed(agent: str) -> None:
    """They are traced, which takes a fraction of the time."""
    others = set(accepted(alone=True)) - set(runs_whole())
    wrong = {}
    for found in sorted(c for c in others if c.agent == agent):
        try:
            if texts := run_combination.traced(found):
                wrong[found] = texts
        except UserError as error:
            assert SENTENCE.match(str(error)), found
        jax.clear_caches()
    assert wrong == {}


def jobs(chosen: list[Combination]) -> dict[int, list[Combination]]:
    """By number of ranks."""
    found: dict[int, list[Combination]] = defaultdict(list)
    for one in chosen:
        pair = one.workflow in ("async one actor", "async lockstep", "dyna")  # one actor, one learner
        found[2 if pair else 3].append(one)
    return found


def check_jobs(chosen: list[Combination], tmp_path) -> None:
    for ranks, cases in jobs(chosen).items():
        folder = tmp_path / str(ranks)
        status, output = launch.run(
            ranks, "-m", "tests.workflows.run_combination", str(folder), *map(str, cases)
        )
        assert status == 0, output
        results = [result for result in launch.results(output) if result["rank"] == 0]
        assert [result["case"] for result in results] == [str(case) for case in cases], output
        found = {}
        for number, result in enumerate(results):
            if result["refused"]:
                assert SENTENCE.match(result["refused"]), result
            else:
                found[result["case"]] = run_combination.left_in(folder / str(number)) + result["batches"]
        assert {case: texts for case, texts in found.items() if texts} == {}


def jobs_of_each_pair() -> list[Combination]:
    """Every agent with every workflow of ranks, the rest drawn."""
    return one_of_each(accepted(alone=False), "agent", "workflow")


@pytest.mark.mpi
@launch.needs_mpi
@pytest.mark.full
@pytest.mark.timeout(3600)
def test_some_jobs_do_what_they_claim(tmp_path) -> None:
    check_jobs(sample(jobs_of_each_pair(), 6), tmp_path)


@pytest.mark.mpi
@launch.needs_mpi
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("agent", list(combinations.AGENTS))
def test_all_jobs_do_what_they_claim(agent, tmp_path) -> None:
    check_jobs([c for c in jobs_of_each_pair() if c.agent == agent], tmp_path)


def test_priorities_that_the_replay_ignores_are_refused() -> None:
    config = small.config(replay={"name": "uniform"}, workflow={"actor_priorities": True})
    with pytest.raises(UserError, match=r"draws all windows alike and would ignore them"):
        build(config)


@pytest.mark.parametrize("agent", ["ppo", "dyna_q"])
def test_one_gradient_per_exchange_cannot_be_several_updates(agent) -> None:
    found = Combination(agent, "parameter_server gradients", "default", "auto", "small")
    assert refusal(found).startswith(
        "workflow.optimiser=server: this agent makes several updates of one batch"
    )


def test_learning_that_is_none_is_told() -> None:
    good = {"updates_used": 1.0, "drawable": 0.9, "loss": 1.0}
    assert idle_learning([good, {"loss": 1.0}]) == ""
    assert idle_learning([good, good | {"updates_used": 0.0}]).startswith("nothing was learned")
    assert idle_learning([good, good | {"drawable": 0.06}]).startswith("only 6% of the windows")


@pytest.mark.full
def test_a_replay_that_holds_nothing_to_draw_is_told(tmp_path, caplog) -> None:
    """Episodes of two steps, windows of four, all within one episode."""
    config = configs.from_dict(
        {
            "agent": {
                "name": "recurrent_dqn",
                "lstm": 4,
                "network": {"hidden": [8]},
                "burn_in": 1,
                "length": 3,
            },
            "env": {"name": "ProbeTruncation"},
            "replay": {"name": "sequence", "episodes": "within", "capacity": 256, "min_size": 64},
            "workflow": {"name": "fused", "num_envs": 2},
            "run": {"total_env_steps": 400, "log_every": 100, "eval_every": 0, "final_eval_episodes": 2},
        }
    )
    with caplog.at_level(logging.WARNING):
        train(config, tmp_path / "run", say=lambda _: None)
    assert caplog.text.count("nothing was learned since the last row of metrics") == 1
