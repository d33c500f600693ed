"""The bench measures what it says: same work on both sides, turns, ratios, and a clear word on failure."""

import ast
import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.bench import cases, growth, interleave, start, threads, train, train_tables
from jaxrl_hpc.bench.interleave import Entry, Peers
from jaxrl_hpc.cli import main
from jaxrl_hpc.errors import UserError

HERE = ["--peer-python", sys.executable]  # rejax is installed beside us, for tests
DATA = Path(__file__).parents[2] / "docs" / "data"
ALL_CASES = [*cases.CASES, *cases.SLOT_CASES, *cases.PRIORITY_CASES]


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_our_config_is_the_work(case):
    config, work = configs.from_dict(cases.our_config(case.work)), case.work
    assert (config.agent.name, config.env.name) == (work.algorithm, work.env)
    assert config.workflow.num_envs == work.num_envs
    assert config.agent.network.hidden == (work.width, work.width)
    assert config.run.seeds == work.seeds
    assert work.width == 64 or not case.peers  # rejax's networks are fixed at that
    assert work.double == (case.peers == ("rejax",)) or work.algorithm != "dqn" or not case.peers
    if config.replay is None:
        assert config.workflow.unroll_length == work.unroll_length
        assert (config.agent.epochs, config.agent.minibatches) == (work.epochs, work.minibatches)
    else:
        assert config.replay.capacity == work.capacity
        assert config.agent.batch_size == work.batch_size


def sample(rate, updates=1.0, cpu=1.0):
    return {
        "seconds": 2.0,
        "cpu_seconds": cpu,
        "env_steps": 2 * rate,
        "updates": updates,
        "chunks": 1,
        "peak_bytes": 2**20,
    }


def entry(library, case="x", **work):
    return Entry(library, case, cases.dqn(8, **work))


def test_ratio_is_taken_within_rounds():
    # the machine slows down threefold in the last round: the ratio does not
    ours = interleave.describe(entry("ours"), [sample(300), sample(330), sample(100)])
    theirs = interleave.describe(entry("rejax"), [sample(100, cpu=2), sample(110, cpu=2), sample(33, cpu=2)])
    found = interleave.ratio(ours, theirs)
    assert found["median"] == pytest.approx(3.0, abs=0.05)
    assert ours["env_steps_per_second"] == 300
    assert ours["cpu_microseconds_per_update"] == 1e6
    assert ours["cores"] == 0.5
    assert interleave.cpu_ratio(ours, theirs)["median"] == pytest.approx(2.0)


def test_work_that_is_not_the_same_is_refused():
    case = cases.CASES[1]
    fair = {"library": "rejax", "steps_per_update": 8.04}  # it collected a little before it learned
    train.check_equal_work(case, [fair])
    with pytest.raises(UserError, match="the work is not the same"):
        train.check_equal_work(case, [fair, {"library": "sbx", "steps_per_update": 4.0}])


def test_a_pinned_row_that_used_more_than_its_core_is_refused():
    pinned = entry("rejax")._replace(mode="pinned")
    held = interleave.describe(pinned, [sample(300, cpu=2.0), sample(300, cpu=2.1)])  # of two seconds
    assert held["cores"] == pytest.approx(1.025)
    with pytest.raises(UserError, match=r"rejax on x used 1\.35 cores, though it was pinned to one"):
        interleave.describe(pinned, [sample(300, cpu=2.0), sample(300, cpu=2.7)])
    assert interleave.describe(entry("rejax"), [sample(300, cpu=2.7)])["cores"] == pytest.approx(1.35)


def test_recorded_pinned_rows_kept_to_their_core():
    results = [
        result
        for name in ("train", "atari")
        for case in json.loads((DATA / f"bench_{name}.json").read_text())["cases"]
        for result in case["results"]
    ]
    pinned = [result for result in results if result["mode"] == "pinned"]
    assert len(pinned) > 5
    assert all(result["cores"] <= interleave.PINNED_CORES for result in pinned)


def cores_of_threads(process):
    """How many cores each thread of a process may use."""
    tasks = [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    return [len(os.sched_getaffinity(task)) for task in tasks]


@pytest.mark.full
@pytest.mark.parametrize("library", ["ours", "rejax"])
def test_all_threads_of_a_pinned_worker_have_one_core(library):
    pytest.importorskip("rejax")
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("there is one core only")
    entries = [Entry(library, "ppo", cases.ppo(2, unroll_length=16), mode) for mode in ("pinned", "default")]
    with interleave.workers_of(entries, Peers(), lambda text: None) as (pinned, default):
        found = cores_of_threads(pinned.process.pid)
        assert len(found) > 1 and set(found) == {1}
        assert set(cores_of_threads(default.process.pid)) == {len(before)}
    assert os.sched_getaffinity(0) == before


def test_workers_compile_everything_themselves(monkeypatch, tmp_path):
    program = "import os; print('{\"cache\": \"' + os.environ['JAX_ENABLE_COMPILATION_CACHE'] + '\"}')"
    monkeypatch.setattr(Peers, "command", lambda self, entry: [sys.executable, "-c", program])
    with interleave.workers_of([entry("ours")], Peers(), lambda text: None) as (worker,):
        assert worker.ready == {"cache": "false"}


def test_goals_count_against_the_best_peer():
    def comparison(peer, mode, rate, cpu):
        return {"peer": peer, "mode": mode, "rate": {"median": rate}, "cpu": {"median": cpu}}

    case = {
        "goal": 1.5,
        "pinned_goal": 1.25,
        "comparisons": [
            comparison("rejax", "default", 5.0, 9.0),
            comparison("purejaxrl", "default", 1.4, 9.0),
            comparison("purejaxrl", "pinned", 9.0, 1.3),
        ],
    }
    assert train.goals(case) == [
        "rate 1.40× of purejaxrl, goal 1.5×: missed",
        "CPU time, pinned 1.30× of purejaxrl, goal 1.25×: reached",
    ]


def test_a_path_without_purejaxrl_and_a_python_that_is_none_are_named(tmp_path, capsys):
    command = ["bench", "train", "--only", "dqn_8"]
    assert main.main([*command, "--peer-path", str(tmp_path)]) == 2
    assert "give a checkout" in capsys.readouterr().err
    assert main.main([*command, "--peer-python", str(tmp_path / "python")]) == 2
    assert "does not run" in capsys.readouterr().err


def test_peers_import_nothing_of_ours():
    folder = interleave.PEER_WORKER.parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith("jaxrl_hpc") for name in names), file


@pytest.mark.full
def test_a_peer_is_measured_and_counts_for_itself():
    pytest.importorskip("rejax")
    work = cases.ppo(2, unroll_length=16)
    (result,) = interleave.take_turns([Entry("rejax", "ppo", work)], 0.05, 2)
    assert result["steps_per_update"] == 2
    assert result["compile_seconds"] > 0 and result["peak_bytes"] > 2**20
    learned = interleave.learn(Entry("rejax", "ppo", work._replace(warm=False, budget=64)), 64, Peers())
    assert learned["env_steps"] >= 64 and 8 <= learned["return"] <= 500


def test_growth_is_relative_to_the_cheapest_smaller_size(monkeypatch, capsys, tmp_path):
    assert growth.growth([4.0, 2.0, 3.0]) == [1.0, 0.5, 1.5]
    monkeypatch.setattr(growth, "take_turns", fake_turns)
    target = tmp_path / "growth.json"
    command = ["bench", "growth", "--quick", "--only", "batch", "--json", str(target)]
    assert main.main([*command, "--plot", str(tmp_path / "growth.svg")]) == 0
    (axis,) = json.loads(target.read_text())["axes"]
    assert [line["size"] for line in axis["lines"]] == [32, 128, 512, 2048]
    assert axis["lines"][1]["growth"] == pytest.approx(0.375)  # 1.5 times the time for four times the rows
    assert "row of the batch" in " ".join(capsys.readouterr().out.split())
    assert main.main(["bench", "growth", "--only", "colour"]) == 2


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
        interleave.take_turns([entry("no_such_library")], 0.1, 1)


@pytest.mark.full
def test_our_worker_counts_steps_and_updates():
    case = cases.width_case(64, 1)
    (result,) = interleave.take_turns([Entry("ours", case.name, case.work)], 0.05, 2)
    assert len(result["rounds"]) == 2
    assert result["env_steps_per_second"] == pytest.approx(8 * result["updates_per_second"])


@pytest.mark.slow
def test_the_whole_command(tmp_path):
    pytest.importorskip("rejax")
    target = tmp_path / "bench.json"
    assert (
        main.main(["bench", "train", "--quick", "--only", "ppo_16", "td3", "--json", str(target), *HERE]) == 0
    )
    report = json.loads(target.read_text())
    assert [case["name"] for case in report["cases"]] == ["ppo_16", "td3"]
    for case in report["cases"]:
        assert [c["peer"] for c in case["comparisons"] if c["mode"] == "default"] == ["rejax"]
        assert all(c["rate"]["median"] > 0 for c in case["comparisons"])
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


def test_flops_of_an_iteration_of_ppo_are_those_of_its_products():
    from jaxrl_hpc.bench.profile import ppo_flops

    # a layer of 2 x 4 x 2 multiplications and additions, ... : one minibatch, one epoch, by hand
    work = cases.ppo(1, unroll_length=1, epochs=1, minibatches=1, width=2)
    policy, value = 2 * (8 + 4 + 4), 2 * (8 + 4 + 2)
    without_first_input = 2 * (4 + 4), 2 * (4 + 2)
    updates = 2 * (policy + value) + sum(without_first_input)
    assert ppo_flops(work) == policy + 2 * value + updates
    assert ppo_flops(work._replace(epochs=3)) == policy + 2 * value + 3 * updates


def fake_turns(entries, seconds, rounds, say=lambda text: None, peers=None):
    """Rates fall with the number at the end of a case's name; nothing runs."""
    say("turn")
    return [
        interleave.describe(e, [sample(8e6 / (1 + i + n), 2e6 / (1 + i + n)) for n in range(rounds)])
        | {"compile_seconds": 1.0}
        for i, e in enumerate(entries)
    ]


def test_replay_sizes_and_tables(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(train, "take_turns", fake_turns)
    monkeypatch.setattr(train, "find_peers", lambda *_: (Peers(), {"rejax": "0.1.3", "sbx": "0.28"}))
    target = tmp_path / "bench.json"
    command = ["bench", "train", "--quick", "--only", "dqn_8", "slots", "--json", str(target)]
    assert main.main([*command, "--plot", str(tmp_path / "bench.svg")]) == 0
    picture = (tmp_path / "bench.svg").read_bytes()
    assert len(picture) > 1_000
    report = json.loads(target.read_text())
    ours = report["slots"]["ours"]
    assert [line["slots"] for line in ours] == [slots for slots, _ in cases.SLOTS]
    assert [line["slowdown"]["median"] for line in ours] == pytest.approx([1, 1.5, 2, 2.5])
    assert "1,048,576" in capsys.readouterr().out
    train_tables.draw(report, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == picture


def test_a_measurement_keeps_the_cases_that_it_leaves_out(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(train, "take_turns", fake_turns)
    monkeypatch.setattr(train, "find_peers", lambda *_: (Peers(), {"rejax": "0.1.3", "purejaxrl": "31756b1"}))
    target = tmp_path / "bench.json"
    command = ["bench", "train", "--quick", "--json", str(target), "--only"]
    assert main.main([*command, "dqn_8_seeds_16", "dqn_8", "slots"]) == 0
    first = json.loads(target.read_text())
    assert main.main([*command, "dqn_8", "double_dqn_8", "--rounds", "2"]) == 0
    report = json.loads(target.read_text())
    assert [case["name"] for case in report["cases"]] == ["dqn_8", "double_dqn_8", "dqn_8_seeds_16"]
    assert report["cases"][2] == first["cases"][1] and report["slots"] == first["slots"]
    assert report["rounds"] == 2 and len(report["cases"][0]["results"][0]["rounds"]) == 2
    assert {name: facts["rounds"] for name, facts in report["earlier"].items()} == {
        "dqn_8_seeds_16": 3,
        "slots": 3,
    }
    assert train.facts_of(report, "dqn_8_seeds_16")["machine"] == first["machine"]
    assert train.facts_of(report, "dqn_8")["rounds"] == 2
    assert main.main([*command, "dqn_8_seeds_16", "slots", "--rounds", "4"]) == 0
    assert set(json.loads(target.read_text())["earlier"]) == {"dqn_8", "double_dqn_8"}
    target.write_text("[]")
    assert main.main([*command, "dqn_8_seeds_16"]) == 2
    assert "no record of `bench train`" in capsys.readouterr().err


def test_threads_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(threads, "take_turns", fake_turns)
    monkeypatch.setattr(threads.host, "available_cores", lambda: 2)
    target = tmp_path / "bench.json"
    assert main.main(["bench", "threads", "--quick", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert [line["width"] for line in report["lines"]] == list(cases.WIDTHS)
    assert report["turning_point"] is None  # the second of two entries is the slower one
    assert "at no width here" in " ".join(capsys.readouterr().out.split())


def test_one_core_has_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(threads.host, "available_cores", lambda: 1)
    assert main.main(["bench", "threads"]) == 2


def test_starts_take_turns_with_an_empty_and_a_full_cache(monkeypatch, tmp_path, capsys):
    begun = []

    def fake(checkout, case, cache):
        begun.append((checkout, cache))
        warm = begun.count((checkout, cache)) == 2
        return dict(zip(start.FIGURES, (2.0 if warm else 9.0, 1.9, 3.0, 2.5, 0.5), strict=True))

    monkeypatch.setattr(start, "start", fake)
    (tmp_path / "jaxrl_hpc").mkdir()
    out = tmp_path / "out.json"
    command = ["bench", "start", "--rounds", "2", "--before", str(tmp_path), "--json", str(out)]
    assert main.main(command) == 0
    lines = json.loads(out.read_text())["lines"]
    assert [(line["cache"], line["version"]) for line in lines[:4]] == [
        ("cold", "before"), ("warm", "before"), ("cold", "now"), ("warm", "now"),
    ]  # fmt: skip
    assert begun[0][0] == begun[4][0] == tmp_path and begun[2][0] != tmp_path
    assert len({cache for _, cache in begun}) == len(begun) / 2  # nobody finds what another has compiled
    assert "2.00 s to the summary (1.90 s of CPU), goal 3 s: reached" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.full
def test_a_start_is_timed_to_the_summary_and_to_the_end(tmp_path):
    case = start.Case(str(small_config(tmp_path)), 512)
    found = start.start(start.Path(start.jaxrl_hpc.__file__).parents[1], case, tmp_path / "cache")
    assert 0 < found["compile_seconds"] < found["summary_seconds"] < found["seconds"]
    assert 0 < found["summary_cpu_seconds"] <= found["cpu_seconds"] + 0.02  # of a clock in hundredths
    with pytest.raises(UserError, match="ended: error: "):
        start.start(tmp_path, start.Case("no_such_config", 512), tmp_path / "cache")


def small_config(folder):
    from tests import small

    path = folder / "small.json"
    path.write_text(json.dumps(small.config(run={"final_eval_episodes": 4}).to_dict()))
    return path
