"""What single changes to the programs are worth: python scripts/studies/candidates.py [--rounds 9]

Each candidate is the program with one thing done differently: an optimisation that is in use taken out, or
one that is not in use put in. All of them and the program as it is run in turns, each in a process held to
one core (bench/interleave.py), on workloads of `jaxrl-hpc bench train`. scripts/studies/performance.py puts
what this writes (docs/data/bench_candidates.json) on docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_hpc.agents import dqn
from jaxrl_hpc.bench import cases, interleave, worker
from jaxrl_hpc.bench.peers.serve import serve
from jaxrl_hpc.networks import dense
from jaxrl_hpc.networks.heads import QNetwork
from jaxrl_hpc.networks.torso import make_torso
from jaxrl_hpc.ops import optimise, threefry
from jaxrl_hpc.ops.losses import huber, select_action
from jaxrl_hpc.ops.returns import fold_window, take_step
from jaxrl_hpc.runtime import machine
from jaxrl_hpc.types import UpdateInfo
from jaxrl_hpc.workflows import fused, update

TARGET = Path(__file__).resolve().parents[2] / "docs" / "data" / "bench_candidates.json"
AS_IT_IS = "as it is"


class Candidate(NamedTuple):
    """One thing done differently."""

    in_use: bool  # then the change is to take it out
    what: str
    change: Callable[[], None]
    works: tuple[str, ...]  # cases of `bench train`


def keys_by_xla() -> None:
    threefry.install = lambda: False


def plain_weight_gradient() -> None:
    def backward(residuals: Any, dy: Any) -> Any:
        x, weight = residuals
        rows, outputs = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return jnp.dot(dy, weight.T), jnp.dot(rows.T, outputs)

    dense.product.defvjp(dense._forward, backward)


def narrow_vectors() -> None:
    machine.WIDE_VECTORS = "--xla_cpu_prefer_vector_width=256"


def flat_adam() -> None:
    by_leaf = optimise._adam
    optimise._adam = lambda config, hypers: optax.flatten(by_leaf(config, hypers))


def no_metrics() -> None:
    """No gradient norm, and of an update only the loss: the most that cheaper metrics can bring."""
    update.gradient_norm = lambda grads, params: jnp.float32(0)
    make = dqn.make

    def shorter(*args: Any, **kwargs: Any) -> Any:
        agent = make(*args, **kwargs)

        def gradient(*inputs: Any) -> Any:
            grads, info = agent.gradient(*inputs)
            return grads, info._replace(metrics={"loss": info.metrics["loss"]})

        return agent._replace(gradient=gradient)

    dqn.make = shorter


def two_iterations_at_once() -> None:
    """The loop's body is two iterations; an odd one comes last."""

    def repeat(iterate: Any, state: Any, iterations: Any, sums: Any = None) -> Any:
        once = jax.jit(iterate, inline=True)
        if sums is None:
            shapes = jax.eval_shape(once, state)[1]
            sums = fused.ChunkSums(fused._zeros_like_shape(shapes), fused.Episodes.zero())

        def body(_: Any, loop: Any) -> Any:
            state, sums = loop
            state, metrics, ended = once(state)
            return state, jax.tree.map(jnp.add, sums, fused.ChunkSums(metrics, ended))

        both = jax.lax.fori_loop(0, iterations // 2, lambda i, x: body(i, body(i, x)), (state, sums))
        return jax.lax.fori_loop(0, iterations % 2, body, both)

    fused.repeat = repeat


def seeds_by_vmap() -> None:
    """As `run.seeds_mode: auto` does on accelerators; on CPUs it runs a program per seed."""
    config_of = worker.our_config

    def stacked(work: cases.Work) -> dict[str, Any]:
        config = config_of(work)
        return config | {"run": config["run"] | {"seeds_mode": "vmap"}}

    worker.our_config = stacked


Forward = Callable[[Any, Any], Any]
Values = Callable[[Forward, Any, Any, Any, Any], tuple[Any, Any, Any]]


def three_passes(forward: Forward, params: Any, target: Any, obs: Any, next_obs: Any) -> Any:
    """Values of obs; of next_obs by the online network and by the target."""
    return forward(params, obs), forward(jax.lax.stop_gradient(params), next_obs), forward(target, next_obs)


def one_online_pass(forward: Forward, params: Any, target: Any, obs: Any, next_obs: Any) -> Any:
    both = forward(params, jnp.concatenate([obs, next_obs]))
    return both[: len(obs)], jax.lax.stop_gradient(both[len(obs) :]), forward(target, next_obs)


def online_beside_target(forward: Forward, params: Any, target: Any, obs: Any, next_obs: Any) -> Any:
    stacked = jax.tree.map(lambda p, t: jnp.stack([jax.lax.stop_gradient(p), t]), params, target)
    online, of_target = jax.vmap(forward, in_axes=(0, None))(stacked, next_obs)
    return forward(params, obs), online, of_target


def written_again(
    values: Values = three_passes, *, fused_huber: bool = False, goal_first: bool = False
) -> None:
    """Double DQN's gradient, for values and transitions, in another form."""
    make = dqn.make

    def other(config: Any, spec: Any, *, num_envs: int) -> Any:
        agent = make(config, spec, num_envs=num_envs)
        network = QNetwork(make_torso(config.network, spec), spec.num_actions, False, (), "relu", 0, 0.0)

        def forward(params: Any, obs: Any) -> Any:
            return network.apply(params, obs)

        def gradient(state: Any, batch: Any, key: Any) -> Any:
            data, by = batch.data, state.hypers
            folded = fold_window(data.reward, data.discount, data.last, by["gamma"])
            obs, next_obs = data.obs[0], take_step(data.next_obs, folded.final)

            def goal(online: Any, of_target: Any) -> Any:
                following = select_action(of_target, jnp.argmax(online, axis=-1))
                return jax.lax.stop_gradient(folded.reward + folded.discount * following)

            fixed = None
            if goal_first:
                fixed = goal(forward(state.params, next_obs), forward(state.target, next_obs))

            def loss(params: Any) -> Any:
                if fixed is None:
                    q, online, of_target = values(forward, params, state.target, obs, next_obs)
                    wanted = goal(online, of_target)
                else:
                    q, wanted = forward(params, obs), fixed
                value = select_action(q, data.action[0])
                error = wanted - value
                if fused_huber:  # its derivative is the clipped error
                    slope = -jax.lax.stop_gradient(jnp.clip(error, -by["huber_delta"], by["huber_delta"]))
                    total = jnp.mean(batch.weight * slope * value)
                else:
                    total = jnp.mean(batch.weight * huber(error, by["huber_delta"]))
                return total, (error, value)

            (total, (error, value)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
            if fused_huber:
                total = jnp.mean(batch.weight * huber(error, by["huber_delta"]))
            metrics = {"loss": total, "q_value": value.mean(), "td_error": jnp.abs(error).mean()}
            return grads, UpdateInfo(metrics, jnp.abs(error))

        return agent._replace(gradient=gradient)

    dqn.make = other


DQN, PPO, TD3, SEEDS = "double_dqn_8", "ppo_64", "td3", "dqn_8_seeds_16"
CANDIDATES = {
    "keys": Candidate(True, "random words as one compiled call", keys_by_xla, (DQN, PPO, TD3)),
    "weights": Candidate(
        True, "weight gradients by transposing the narrower factor", plain_weight_gradient, (DQN, PPO, TD3)
    ),
    "vectors": Candidate(True, "vectors of 512 bits", narrow_vectors, (DQN, PPO, TD3)),
    "again": Candidate(
        False, "control: the gradient written again for this study, without a change", written_again, (DQN,)
    ),
    "one_pass": Candidate(
        False,
        "one forward pass of the online network for observations and next ones",
        lambda: written_again(one_online_pass),
        (DQN,),
    ),
    "batched": Candidate(
        False,
        "online and target network side by side as one batched product",
        lambda: written_again(online_beside_target),
        (DQN,),
    ),
    "huber": Candidate(
        False, "Huber loss by its derivative", lambda: written_again(fused_huber=True), (DQN,)
    ),
    "goal": Candidate(
        False,
        "targets, folding and gathers outside of the differentiated function",
        lambda: written_again(goal_first=True),
        (DQN,),
    ),
    "adam": Candidate(False, "Adam over one flattened vector", flat_adam, (DQN, PPO, TD3)),
    "metrics": Candidate(False, "no metrics but the loss (a bound on cheaper ones)", no_metrics, (DQN,)),
    "unroll": Candidate(False, "two iterations per turn of the loop", two_iterations_at_once, (DQN, TD3)),
    "vmap": Candidate(False, "all seeds stacked in one program", seeds_by_vmap, (SEEDS,)),
}


class Variants(interleave.Peers):
    """Starts this file as the worker of a candidate, which takes the place of a library."""

    def command(self, entry: interleave.Entry) -> list[str]:
        return [sys.executable, __file__, "--worker", entry.library, json.dumps(entry.work._asdict())]


def compared(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """All candidates of a case in turns with the program as it is."""
    case = next(case for case in cases.CASES if case.name == name)
    chosen = [key for key, candidate in CANDIDATES.items() if name in candidate.works]
    entries = [interleave.Entry(key, name, case.work, "pinned") for key in (AS_IT_IS, *chosen)]
    results = interleave.take_turns(entries, seconds, rounds, print, Variants())
    lines = [
        {
            "candidate": key,
            "what": CANDIDATES[key].what,
            "in_use": CANDIDATES[key].in_use,
            "cpu_microseconds_per_update": result["cpu_microseconds_per_update"],
            "cost": interleave.cpu_ratio(results[0], result),  # CPU time with the change over that without
        }
        for key, result in zip(chosen, results[1:], strict=True)
    ]
    return {"name": name, "title": case.title, "as_it_is": results[0], "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--worker", nargs=2, metavar=("CANDIDATE", "WORK"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    args = parser.parse_args()
    if args.worker:
        name, work = args.worker
        if name != AS_IT_IS:
            CANDIDATES[name].change()
        serve(lambda: worker.make(cases.Work(**json.loads(work))))
        return
    report: dict[str, Any] = {"quick": False, "seconds": args.seconds, "rounds": args.rounds}
    report["machine"] = interleave.machine_facts()
    report["cases"] = []
    for name in (DQN, PPO, TD3, SEEDS):
        report["cases"].append(compared(name, args.rounds, args.seconds))
        report["machine"]["load_after"] = interleave.machine_facts()["load"]
        TARGET.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {TARGET}")


if __name__ == "__main__":
    main()
