"""One look and one vocabulary for pages, plots, notebooks and studies: colours, names, units.

Colours have a meaning: an agent keeps its colour on every figure, entries of one agent are shades of it
(`colors_of`). Names in
configs and metrics become words (`words`, `title`), metrics with their unit.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

# Distinguishable on white and on dark; between neighbours in common figures also for colour-blind readers.
PALETTE = (
    "#2f6fdf", "#d9660a", "#0f8f6d", "#a845c0", "#d0303f", "#1690b2", "#8f7314", "#b0206f", "#104f60",
    "#7a3e12", "#6f8f00", "#7c4dff",
)  # fmt: skip
DARK_PALETTE = (
    "#74a5ff", "#ff9d4d", "#3fcf9f", "#d48ae6", "#ff7b86", "#5ccbe6", "#d3b34a", "#ff9fd0", "#dfe9f5",
    "#c98f6a", "#ccf08a", "#9d7bff",
)  # fmt: skip
INK, MUTED, LINE, GRID = "#1b2130", "#5b6270", "#b8bec9", "#e7eaf0"
REFERENCE = "#7b8494"  # reference lines: targets, other controllers

# Agents, in the order of the palette; of several that a name contains the last one counts (mbpo_td3 is MBPO)
FAMILIES = (
    "dqn", "ppo", "a2c", "td3", "ddpg", "apex", "recurrent_dqn", "dyna_q", "sac", "pqn", "mbpo", "iql",
)  # fmt: skip
ALIASES = {"ape-x": "apex", "impala": "a2c", "a3c": "a2c"}
SHADES = ((INK, 0.0), (INK, 0.45), ("#ffffff", 0.4))  # of entries with the same agent: colour mixed in, share

MATPLOTLIB: Any = {
    "figure.dpi": 150,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#444a55",
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": 1.9,
    "legend.frameon": False,
    "legend.fontsize": 9,
}

TITLES = {
    "eval_return": "Evaluation return",
    "eval_return_std": "Return, spread over episodes",
    "eval_length": "Evaluation length (steps)",
    "eval_finished": "Episodes that ended (share)",
    "eval_improvement": "Improvement over the regulator (factor)",
    "episode_return": "Training episode return",
    "episode_length": "Training length (steps)",
    "episodes": "Training episodes ended",
    "env_steps_per_second": "Environment steps per second",
    "updates_per_second": "Updates per second",
    "env_steps": "Environment steps",
    "wall_seconds": "Wall time (min)",  # seconds in files, minutes on axes
    "loss": "Loss",
    "q_mean": "Mean Q value",
    "q_value": "Mean Q value",
    "td_error": "TD error",
    "kl": "KL divergence to the acting policy",
    "entropy": "Policy entropy (nats)",
    "rho": "Mean importance ratio",
    "rho_clipped": "Importance ratios clipped (share)",
    "clipped": "Ratios clipped (share)",
    "lag_mean": "Mean lag (learner iterations)",
    "lag_max": "Largest lag (learner iterations)",
    "queue_depth": "Queue depth (unrolls)",
    "learner_idle": "Learners idle (share of time)",
    "actor_idle": "Actors idle (share of time)",
    "dropped_unrolls": "Unrolls dropped (too old)",
    "actors": "Actors connected",
    "joined_actors": "Actors that joined",
    "left_actors": "Actors that left",
    "lost_actors": "Actors lost",
    "acknowledged_unrolls": "Unrolls acknowledged",
    "discarded_unrolls": "Unrolls discarded (not acknowledged)",
    "inference_share": "Inference (share of time)",
    "grad_norm": "Gradient norm",
    "drawable": "Drawable windows (share)",
    "updates_used": "Updates with data (share)",
    "window_used": "Window length (steps)",
    "value": "Mean value",
    "policy_loss": "Policy loss",
    "value_loss": "Value loss",
}

WORDS = {
    "a2c": "A2C", "ppo": "PPO", "dqn": "DQN", "ddpg": "DDPG", "td3": "TD3", "q": "Q", "td": "TD", "kl": "KL",
    "lstm": "LSTM", "rma": "RMA", "vtrace": "V-trace", "apex": "Ape-X", "dyna": "Dyna", "minatar": "MinAtar",
    "cartpole": "CartPole", "exabooster": "ExaBooster", "gae": "GAE", "mpi": "MPI", "mse": "MSE",
    "a3c": "A3C", "bc": "BC", "c51": "C51", "fqe": "FQE", "iql": "IQL", "mbpo": "MBPO",
    "pqn": "PQN", "sac": "SAC",
    "impala": "IMPALA", "async": "asynchronous", "2m": "2M", "rms": "RMS", "pi": "PI",
}  # fmt: skip
PHRASES = {
    "a2c_vtrace": "A2C + V-trace",
    "dyna_q": "Dyna-Q",
    "recurrent_dqn": "recurrent DQN",
    "parameter_server": "parameter server",
    "central_inference": "central inference",
    "rma_queue": "RMA queue",
    "async": "asynchronous",
}


def color(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def color_index(names: Sequence[str]) -> list[int]:
    """A place in the palette for each name: that of its agent if it is free, else the next free one."""
    taken: list[int] = []
    for name in names:
        wanted = family(name) if family(name) is not None else len(taken) % len(PALETTE)
        free = [i for i in range(len(PALETTE)) if i not in taken] or list(range(len(PALETTE)))
        taken.append(wanted if wanted in free else free[0])
    return taken


def colors_of(names: Sequence[str], agents: Sequence[str] = ()) -> list[str]:
    """Colours of curves in one figure: entries of the same agent are shades of its colour.

    `agents` are those of entries whose names contain none. Entries without one, and those of one
    agent whose names do not repeat it, get free colours.
    """
    owners = [family(name) for name in names]
    if len(set(agents)) == len(agents) or any(owner is not None for owner in owners):
        hints = [family(agent) for agent in agents or [""] * len(names)]
        owners = [hint if owner is None else owner for owner, hint in zip(owners, hints, strict=True)]
    free = itertools.cycle([i for i in range(len(PALETTE)) if i not in owners] or range(len(PALETTE)))
    places = [next(free) if owner is None else owner for owner in owners]
    found = [""] * len(names)
    # the entry that is named after its agent alone has the pure colour
    for index in sorted(range(len(names)), key=lambda i: (len(re.split(r"\W|_", names[i])), i)):
        own = [c for c in (_mixed(places[index], *shade) for shade in SHADES) if c not in found]
        found[index] = own[0] if own else PALETTE[next(free)]
    return found


def family(name: str) -> int | None:
    """The place in the palette of the agent that a name contains, if any."""
    text = name.lower()
    for alias, meant in ALIASES.items():
        text = re.sub(rf"(^|[^a-z0-9]){alias}($|[^a-z0-9])", rf"\1{meant}\2", text)
    own = [i for i, one in enumerate(FAMILIES) if re.search(rf"(^|[^a-z0-9]){one}($|[^a-z0-9])", text)]
    return own[-1] if own else None


def _mixed(place: int, other: str, share: float) -> str:
    pairs = zip(*(bytes.fromhex(c[1:]) for c in (PALETTE[place], other)), strict=True)
    return "#" + "".join(f"{round((1 - share) * a + share * b):02x}" for a, b in pairs)


def legend_under(panel: Any, columns: int = 1, below: float = 0.2) -> None:
    """A panel's legend below its axis label, where it covers nothing; `below` is a share of its height."""
    panel.legend(loc="upper left", bbox_to_anchor=(0, -below), ncols=columns, borderaxespad=0, fontsize=8.5)


def words(identifier: str) -> str:
    """An identifier in words: a2c_vtrace -> A2C + V-trace, parameter_server -> parameter server."""
    if identifier in PHRASES:
        return PHRASES[identifier]
    if not re.fullmatch(r"[a-z0-9_]+", identifier):
        return identifier  # CartPole-v1, module:attribute, names given by users
    text = identifier
    for phrase in ("a2c_vtrace", "dyna_q", "recurrent_dqn"):
        text = re.sub(rf"(^|_){phrase}(?=_|$)", rf"\1<{phrase}>", text)
    parts = re.findall(r"<\w+>|[^_<>]+", text)
    return " ".join(PHRASES[part[1:-1]] if part[0] == "<" else WORDS.get(part, part) for part in parts)


def title(column: str) -> str:
    """A metric's name in words, with its unit where it has one."""
    if column in TITLES:
        return TITLES[column]
    text = words(column.removeprefix("eval_").replace("/", "_").replace("__", "_"))
    text = f"{text.removesuffix(' seconds')} (s)" if column.endswith("_seconds") else text
    return text[:1].upper() + text[1:]
