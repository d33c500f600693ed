"""Fit the default ExaBooster surrogate, check its gates, and see what fixed rules reach on it.

    python scripts/studies/exabooster_surrogate.py [FILE]     writes docs/results/exabooster_surrogate.md

With a FILE of `jaxrl-hpc surrogate fit` it is not fitted again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import jax
from exabooster_generator import WORDS  # beside this file

from jaxrl_hpc.cli.main import main as command
from jaxrl_hpc.envs.exabooster import ExaBoosterConfig, gates, make, surrogate
from jaxrl_hpc.envs.exabooster.gates import Gate
from jaxrl_hpc.envs.exabooster.policies import RULES, improvement

OUT = Path(__file__).parents[2] / "docs" / "results" / "exabooster_surrogate.md"
SHOWN = ("zero", "hold", "pi", "pi_tuned", "minimum_variance", "with_drift", "with_phase")
EPISODES = 1024

TEMPLATE = """# ExaBooster: the learned surrogate

Made by `python scripts/studies/exabooster_surrogate.py`, which runs `jaxrl-hpc surrogate fit` with its
defaults: {layers} LSTM layer(s) of {width} units on {ticks} ticks of the generator, {updates} updates of
{batch} crops of {crop} ticks, in {seconds:.0f} s of wall time on one thread of {cores} cores that others used
too (load average {load:.1f}).

{gates}

EXARL's surrogate reports a validation MSE of 0.00038 on the real recording; the generator's noise alone is
worth about 0.00028 in these units. In free runs the network's mean gets Gaussian noise of the validation
residual, {noise:.4f} in IMINER.

## Training

{history}

## Does it stand in for the plant?
Improvement factors of the reference rules at H = 100 over {episodes} episodes, on the generator and with the
surrogate in its place (`env.model=surrogate`). The rules know the generator's plant, not the network.

{rules}

Passing the gates is not enough: they look at regulated data. Where a rule leaves what the network has seen
(no compensation, VIMIN held), the network pulls the error back as if the regulator were there, and rules
that cancel what it does not know gain less. Judge agents on the generator or on a recording's residuals.
"""


def rules_table(path: str) -> str:
    lines = ["| rule | generator | surrogate |", "|---|---|---|"]
    built = [
        make(ExaBoosterConfig(bank_size=2048)),
        make(ExaBoosterConfig(bank_size=2048, model="surrogate", surrogate=path)),
    ]
    for name in SHOWN:
        cells = [improvement(*pair, RULES[name], jax.random.key(7), EPISODES) for pair in built]
        lines.append(
            f"| {WORDS[name]} | "
            + " | ".join(f"{value:.3f} ± {spread:.3f}" for value, spread in cells)
            + " |"
        )
    return "\n".join(lines)


def main(path: str) -> None:
    if not Path(path).exists():
        command(["surrogate", "fit", "--out", path])
    network, report = surrogate.load(path)
    settings = report["settings"]
    history = ["| updates | training loss | validation MSE |", "|---|---|---|"]
    history += [
        f"| {row['updates']} | {row['loss']:.4f} | {row['mse']:.3e} |" for row in report["history"][::2]
    ]
    results = [Gate(**{key: row[key] for key in Gate._fields}) for row in report["gates"]]
    text = TEMPLATE.format(
        **{key: settings[key] for key in ("layers", "width", "updates", "batch", "crop")},
        ticks=report["train_ticks"],
        seconds=report["seconds"],
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        gates=gates.table(results),
        noise=float(network.noise),
        history="\n".join(history),
        episodes=EPISODES,
        rules=rules_table(path),
    )
    OUT.write_text(text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/surrogate.bin")
