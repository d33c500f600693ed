"""The bench measures what it says: same work on both sides, turns, ratios, and a clear word on failure."""

import itertools
import json

import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.bench import cases, interleave, threads, train
from jaxrl_hpc.bench.interleave import Entry
from jaxrl_hpc.cli import main
from jaxrl_hpc.errors import UserError


@pytest.mark.parametrize("case", [*cases.CASES, *cases.SLOT_CASES], ids=lambda case: case.name)
def test_both_sides_get_the_same_work(case):
    config = configs.from_dict(case.ours)
    assert cases.find(case.name) == case
    if case.rejax is None:
        return
    name, arguments = case.rejax
    assert config.agent.name == name.lower()
    assert config.env.name == arguments["env"]
    assert config.workflow.num_envs == arguments["num_envs"]
    assert config.agent.network.hidden == (64, 64)  # rejax's networks are fixed at that
    assert config.run.seeds == case.seeds
    if config.replay is not None:
        assert config.replay.capacity == arguments["buffer_size"]
        assert config.agent.batch_size == arguments["batch_size"]
    else:
        assert config.workflow.unroll_length == arguments["num_steps"]
        assert (config.agent.epochs, config.agent.minibatches) == (
            arguments["num_epochs"],
            arguments["num_minibatches"],
        )


def sample(rate, updates=1.0):
    return {"seconds": 2.0, "cpu_seconds": 1.0, "env_steps": 2 * rate, "updates": updates, "chunks": 1}


def test_ratio_is_taken_within_rounds():
    # the machine slows down threefold in the last round: the ratio does not
    ours = interleave.describe(Entry("ours", "x"), [sample(300), sample(330), sample(100)])
    theirs = interleave.describe(Entry("rejax", "x"), [sample(100), sample(110), sample(33)])
    found = interleave.ratio(ours, theirs)
    assert found["median"] == pytest.approx(3.0, abs=0.05)
    assert ours["env_steps_per_second"] == 300
    assert ours["cpu_microseconds_per_update"] == 1e6


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [([0.6, 0.9, 1.2, 1.5], 256), ([0.6, 1.2, 0.9, 1.5], 512), ([0.5, 0.5, 0.5, 0.9], None)],
)
def test_turning_point_is_where_threads_stay_worth_it(speedups, expected):
    widths = (64, 128, 256, 512)
    lines = [{"width": w, "speedup": {"median": s}} for w, s in zip(widths, speedups, strict=True)]
    assert threads.turning_point(lines) == expected


def test_unknown_case_is_named(capsys):
    assert main.main(["bench", "train", "--only", "dqn_9"]) == 2
    assert "there is no case 'dqn_9'" in capsys.readouterr().err


def test_a_worker_that_fails_says_why():
    with pytest.raises(UserError, match="no_such_library"):
        interleave.take_turns([Entry("no_such_library", "dqn_8")], 0.1, 1)


@pytest.mark.full
def test_our_worker_counts_steps_and_updates():
    (result,) = interleave.take_turns([Entry("ours", "width_64_threads_1")], 0.05, 2)
    assert len(result["rounds"]) == 2
    assert result["env_steps_per_second"] == pytest.approx(8 * result["updates_per_second"])


@pytest.mark.slow
def test_the_whole_command(tmp_path):
    pytest.importorskip("rejax")
    target = tmp_path / "bench.json"
    assert main.main(["bench", "train", "--quick", "--only", "ppo_16", "td3", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert [case["name"] for case in report["cases"]] == ["ppo_16", "td3"]
    for case in report["cases"]:
        assert [r["library"] for r in case["results"]] == ["ours", "rejax"]
        assert case["ratios"]["default"]["median"] > 0
    assert train.verdict(2.0, 2.1) == "missed" and train.verdict(2.1, 2.1) == "reached"


@pytest.mark.full
def test_flops_of_an_update_are_what_the_compiler_counts():
    """Matrix products only, so slightly fewer than XLA's count of everything."""
    import jax
    import jax.numpy as jnp

    from jaxrl_hpc.bench.profile import update_flops

    sizes, batch = [4, 256, 256, 2], 128
    weights = [jnp.ones(shape) for shape in itertools.pairwise(sizes)]

    def forward(weights, x):
        for w in weights[:-1]:
            x = jnp.maximum(x @ w, 0.0)
        return x @ weights[-1]

    def loss(params, target, x, y):
        best = jnp.argmax(forward(jax.lax.stop_gradient(params), y), -1)
        goal = jnp.take_along_axis(forward(target, y), best[:, None], 1)
        return ((forward(params, x)[:, :1] - jax.lax.stop_gradient(goal)) ** 2).mean()

    x = jnp.ones((batch, 4))
    compiled = jax.jit(jax.grad(loss)).lower(weights, [w + 1 for w in weights], x, x + 1).compile()
    counted = compiled.cost_analysis()["flops"]
    assert counted == pytest.approx(update_flops(sizes, batch), rel=0.05)


def fake_turns(entries, seconds, rounds, say=lambda text: None):
    """Rates fall with the number at the end of a case's name; nothing runs."""
    say("turn")
    return [
        interleave.describe(e, [sample(1e6 / (1 + i + n)) for n in range(rounds)])
        for i, e in enumerate(entries)
    ]


def test_replay_sizes_and_tables(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(train, "take_turns", fake_turns)
    monkeypatch.setattr(train.importlib.util, "find_spec", lambda name: object())
    target = tmp_path / "bench.json"
    command = ["bench", "train", "--quick", "--only", "dqn_1", "slots", "--json", str(target)]
    assert main.main(command) == 0
    report = json.loads(target.read_text())
    ours = report["slots"]["ours"]
    assert [line["slots"] for line in ours] == [slots for slots, _ in cases.SLOTS]
    assert [line["slowdown"]["median"] for line in ours] == pytest.approx([1, 1.5, 2, 2.5])
    assert "1,048,576" in capsys.readouterr().out


def test_threads_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(threads, "take_turns", fake_turns)
    monkeypatch.setattr(threads.machine, "available_cores", lambda: 2)
    target = tmp_path / "bench.json"
    assert main.main(["bench", "threads", "--quick", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert [line["width"] for line in report["lines"]] == list(cases.WIDTHS)
    assert report["turning_point"] is None  # the second of two entries is the slower one
    assert "at no width here" in " ".join(capsys.readouterr().out.split())


def test_one_core_has_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(threads.machine, "available_cores", lambda: 1)
    assert main.main(["bench", "threads"]) == 2
