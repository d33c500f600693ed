"""Notebook display: small tables, curves as inline SVG, a progress bar.

IPython is used to show progress where it runs, and is not needed otherwise.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_hpc.metrics.progress import Progress
from jaxrl_hpc.metrics.units import count
from jaxrl_hpc.report.style import color

CELL = "text-align:left;padding:2px 12px 2px 0"


def text(value: Any) -> str:
    """A value formatted for display."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def facts(rows: Mapping[str, Any]) -> str:
    """Names and values, one line each."""
    lines = (
        f'<tr><th style="{CELL}">{html.escape(name)}</th>'
        f'<td style="{CELL}">{html.escape(text(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table>{''.join(lines)}</table>"


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with one row per entry."""
    head = "".join(f'<th style="{CELL}">{html.escape(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{html.escape(text(v))}</td>' for v in row) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def titled(title: str, *parts: str) -> str:
    return f"<div><b>{html.escape(title)}</b>{''.join(parts)}</div>"


def curve(x: np.ndarray, y: np.ndarray, label: str) -> str:
    """A small picture of a learning curve; empty if there is none to draw."""
    if len(x) < 2:
        return ""
    width, height, low, high = 260, 56, float(y.min()), float(y.max())
    across = (x - x.min()) / max(float(np.ptp(x)), 1e-12) * (width - 4) + 2
    down = height - 3 - (y - low) / max(high - low, 1e-12) * (height - 6)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
    caption = html.escape(f"{label} {text(low)} to {text(high)} over {count(float(x.max()))} steps")
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="{caption}"><title>{caption}</title>'
        f'<polyline points="{points}" fill="none" stroke="{color(0)}" stroke-width="1.6"/></svg>'
        f'<div style="font-size:85%">{caption}</div>'
    )


class Silent(Progress):
    """Shows no progress."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing."""

    def say(self, text: str) -> None:
        """Does nothing."""


class InNotebook(Progress):
    """One bar below the cell, updated during the run."""

    def __enter__(self) -> InNotebook:
        from IPython.display import HTML, display

        self._html: Callable[[str], Any] = HTML
        self._shown: Any = display(HTML(self._bar("starting")), display_id=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        how = "done" if kind is None and self._steps >= self._total else "stopped"
        self._draw(f"{how}: {count(self._steps)} steps, {count(self._rate(whole=True))} steps/s")

    def update(self, env_steps: int, values: Mapping[str, float] | None = None) -> None:
        super().update(env_steps, values)
        self._draw(self.status())

    def say(self, text: str) -> None:
        """Ignored: the progress bar suffices."""

    def _draw(self, status: str) -> None:
        if self._shown is not None:
            self._shown.update(self._html(self._bar(status)))

    def _bar(self, status: str) -> str:
        share = min(1.0, self._steps / max(1, self._total))
        return (
            f"<div><b>{html.escape(self._name)}</b> "
            f'<progress max="1" value="{share:.3f}" style="width:12em"></progress> '
            f"{html.escape(status)}</div>"
        )


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and found.__class__.__name__ == "ZMQInteractiveShell"


def progress(quiet: bool) -> type[Progress]:
    """Progress display for the environment of this process."""
    return Silent if quiet else InNotebook if in_notebook() else Progress


def voice(quiet: bool) -> Callable[[str], None]:
    """Where lines of text go."""
    return (lambda line: None) if quiet else print
