"""Time of one training iteration by part: double DQN, 8 environments : 1 update, batch 128, one thread.

examples:
  jaxrl-hpc bench pieces --quick
  jaxrl-hpc bench pieces --json bench_pieces.json

Each piece runs alone in a compiled loop that depends on its own result, in turns with the others and with
the whole iteration; cells are medians of CPU time. The arithmetic bound is the floating-point work of the
matrix products at the best rate that a large product reaches on the same core. A whole iteration of PPO
(64 environments, 128 steps) is compared with such a bound too, at the best rate of products of its own shape.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_hpc.bench.cases import Work, dqn, our_config, ppo
from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.ops.optimise import of_params

if TYPE_CHECKING:
    from jaxrl_hpc.runtime.build import Parts
    from jaxrl_hpc.runtime.seeds import SeedRunner

WIDTHS = (64, 128, 256, 512, 1024)
PIECES = ("act and step", "add", "sample", "gradient", "apply")
WIDE, BOUND_GOAL = 256, 0.6  # DQN: from this width on so much of the bound should be reached
PPO_GOAL = 36 / 27  # an iteration of PPO, in units of its bound
LARGE = 1024  # side of the product that shows the core's best rate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    parser.add_argument("--json", metavar="FILE", help="also write the results here")


def update_flops(sizes: list[int], batch: int) -> int:
    """FLOPs of the matrix products of a double-DQN update: three passes forward, one back.

    Back: every layer's weights, and every layer's input but the first's.
    """
    layers = [2 * batch * a * b for a, b in itertools.pairwise(sizes)]
    return 3 * sum(layers) + sum(layers) + sum(layers[1:])


def ppo_flops(work: Work) -> int:
    """FLOPs of the matrix products of an iteration of PPO on CartPole: its unroll and all updates.

    Policy and value have networks of their own. The policy acts; the values of the unroll and of what follows
    it take one pass.
    """
    policy, value = [4, work.width, work.width, 2], [4, work.width, work.width, 1]
    steps = work.num_envs * work.unroll_length

    def passes(sizes: list[int], rows: int, back: bool) -> int:
        layers = [2 * rows * a * b for a, b in itertools.pairwise(sizes)]
        return sum(layers) * (2 if back else 1) + (sum(layers[1:]) if back else 0)

    unroll = passes(policy, steps, False) + passes(value, steps + work.num_envs, False)
    return unroll + work.epochs * sum(passes(sizes, steps, True) for sizes in (policy, value))


def ready(work: Work) -> tuple[Parts, SeedRunner]:
    """The workload on one thread, compiled and initialised."""
    from jaxrl_hpc import config as configs
    from jaxrl_hpc.runtime import machine
    from jaxrl_hpc.runtime.build import build
    from jaxrl_hpc.runtime.train import lanes_of, make_runner

    config = configs.from_dict(our_config(work))
    machine.prepare(config, 1)
    parts = build(config)
    runner = make_runner(config, parts, lanes_of(config))
    runner.compile()
    runner.initialise()
    return parts, runner


def ppo_bound(quick: bool, rounds: int) -> dict[str, Any]:
    """An iteration of PPO beside the time of its matrix products."""
    work = ppo(64)
    samples = []
    runner = ready(work)[1]
    for _ in range(rounds):
        start = time.process_time()
        runner.step(10)
        runner.wait()
        samples.append((time.process_time() - start) / 10 * 1e3)
    flops = ppo_flops(work)
    rows = work.num_envs * work.unroll_length // work.minibatches
    rate = rate_of_shape(rounds, rows, work.width)
    return {
        "title": f"PPO, {work.num_envs} environments × {work.unroll_length} steps",
        "milliseconds": statistics.median(samples),
        "flops": flops,
        "rows": rows,
        "width": work.width,
        "flops_per_second": rate,
        "bound_milliseconds": flops / rate * 1e3,
        "quick": quick,
        "rounds": rounds,
        "machine": machine_facts(),
    }


def loops(width: int, length: int) -> dict[str, Callable[[], Any]]:
    """Piece -> a call that runs it `length` times, compiled and warm."""
    import jax
    import jax.numpy as jnp

    from jaxrl_hpc import rollout

    parts, runner = ready(dqn(8, capacity=8_192, width=width))
    state = jax.tree.map(jnp.copy, runner.states[0])  # the runner's own is donated
    env, agent, replay = parts.env, parts.agent, parts.replay
    assert replay is not None
    key, now = jax.random.key(0), jnp.float32(0)
    batch = jax.jit(replay.sample)(state.replay, key, now)
    grads, _ = jax.jit(agent.gradient)(state.learner, batch, key)

    def act(i: Any, copies: Any) -> Any:
        return rollout.unroll(env, agent, agent.actor(state.learner), copies, 1)[0]

    def store(i: Any, carry: Any) -> Any:
        copies, memory = carry
        copies, steps, _ = rollout.unroll(env, agent, agent.actor(state.learner), copies, 1)
        return copies, replay.add(memory, steps, None)

    def sample(i: Any, sums: Any) -> Any:
        drawn = replay.sample(state.replay, jax.random.fold_in(key, i), now)
        return jax.tree.map(lambda s, x: s + x.astype(s.dtype), sums, drawn)

    def gradient(i: Any, params: Any) -> Any:
        found, _ = agent.gradient(state.learner._replace(params=params), batch, key)
        return jax.tree.map(lambda p, g: p - 1e-9 * g, params, of_params(found, params))

    def apply(i: Any, learner: Any) -> Any:
        first = jax.tree.leaves(learner.params)[0].ravel()[0]  # every round depends on the one before it
        return agent.apply(learner, jax.tree.map(lambda g: g + 1e-9 * first, grads), ())

    def looped(body: Callable[[Any, Any], Any], start: Any) -> Callable[[], Any]:
        program = jax.jit(lambda c: jax.lax.fori_loop(0, length, body, c)).lower(start).compile()
        jax.block_until_ready(program(start))
        return lambda: jax.block_until_ready(program(start))

    def whole() -> None:
        runner.step(length)
        runner.wait()

    whole()
    floats = jax.tree.map(lambda x: x.astype(jnp.float32), batch)
    return {
        "whole iteration": whole,
        "act and step": looped(act, state.rollout),
        "act, step and add": looped(store, (state.rollout, state.replay)),
        "sample": looped(sample, floats),
        "gradient": looped(gradient, state.learner.params),
        "apply": looped(apply, state.learner),
    }


def best_rate(rounds: int) -> float:
    """Floating-point operations per CPU second of a large product."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((LARGE, LARGE), jnp.float32)
    return _rate(rounds, jax.jit(lambda a: a @ a), x, 2 * LARGE**3)


def rate_of_shape(rounds: int, rows: int, width: int) -> float:
    """The same of products of [rows, width] and [width, width], many in a program."""
    import jax
    import jax.numpy as jnp

    x, weight = jnp.ones((rows, width), jnp.float32), jnp.full((width, width), 1 / width, jnp.float32)
    flops = 2 * rows * width**2
    repeats = max(1, 2 * LARGE**3 // flops)
    program = jax.jit(lambda x: jax.lax.fori_loop(0, repeats, lambda _, y: y @ weight, x))
    return _rate(rounds, program, x, repeats * flops)


def _rate(rounds: int, program: Callable[[Any], Any], x: Any, flops: int) -> float:
    import jax

    jax.block_until_ready(program(x))
    best = 0.0
    for _ in range(rounds):
        start = time.process_time()
        jax.block_until_ready(program(x))
        best = max(best, flops / (time.process_time() - start))
    return best


def measure(quick: bool, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    rounds = 3 if quick else 15
    report: dict[str, Any] = {"quick": quick, "rounds": rounds, "lines": []}
    for width in WIDTHS:
        say(f"width {width}")
        length = 20_000 // width
        programs = loops(width, length)
        samples: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(rounds):
            for name, program in programs.items():
                start = time.process_time()
                program()
                samples[name].append((time.process_time() - start) / length * 1e6)
        found = {name: statistics.median(values) for name, values in samples.items()}
        found["add"] = max(found.pop("act, step and add") - found["act and step"], 0.0)
        rest = found["whole iteration"] - sum(found[name] for name in PIECES)
        found["rest"] = rest  # the loop itself, small copies, metrics
        report["lines"].append({"width": width, "microseconds": found})
    rate = best_rate(3 * rounds)
    for line in report["lines"]:
        flops = update_flops([4, line["width"], line["width"], 2], 128)
        line["flops"], line["bound_microseconds"] = flops, flops / rate * 1e6
        line["part_of_bound"] = line["bound_microseconds"] / line["microseconds"]["whole iteration"]
    say("PPO")
    return {**report, "ppo": ppo_bound(quick, rounds), "flops_per_second": rate, "machine": machine_facts()}


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    with console.status("starting …") as status:
        report = measure(args.quick, status.update)
    table = Table("CPU µs", *(f"width {line['width']}" for line in report["lines"]), box=None)
    for name in report["lines"][0]["microseconds"]:
        table.add_row(name, *(f"{line['microseconds'][name]:,.1f}" for line in report["lines"]))
    table.add_row("arithmetic bound", *(f"{line['bound_microseconds']:,.1f}" for line in report["lines"]))
    table.add_row("reached of it", *(f"{line['part_of_bound']:.0%}" for line in report["lines"]))
    console.print(table)
    ppo, ratio = report["ppo"], report["ppo"]["milliseconds"] / report["ppo"]["bound_milliseconds"]
    console.print(f"{ppo['title']}: {ppo['milliseconds']:.1f} ms of CPU an iteration, {ratio:.2f}× its bound")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
        console.print(f"written to {args.json}")
    return 0
