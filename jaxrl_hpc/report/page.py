"""One self-contained HTML page for a run or a comparison of runs.

    write_report(["runs/a", "runs/b"], "comparison.html")

The page holds its data and the script that draws it as SVG (templates/charts.js.j2); a content security
policy keeps it from fetching anything. Its contents are the list of sections in `sections.py`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

import jaxrl_hpc
from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.report.charts import Places
from jaxrl_hpc.report.data import RunData, load_runs
from jaxrl_hpc.report.plots import heading
from jaxrl_hpc.report.sections import Section, sections_of
from jaxrl_hpc.report.style import DARK_PALETTE, PALETTE, color_index


def write_report(
    run_dirs: Sequence[str | Path],
    output: str | Path,
    reload_seconds: int = 0,
    base_of: Callable[[RunData], tuple[str, dict[str, Any]] | None] = lambda run: None,
) -> Path:
    """Make the page; UserError if a directory is not a run with metrics. `base_of` finds a run's config
    file."""
    if not run_dirs:
        raise UserError("a report needs at least one run directory")
    runs = [replace(run, base=base_of(run)) for run in load_runs(run_dirs)]
    return write_page(render(runs, reload_seconds), output)


def write_page(page: str, output: str | Path) -> Path:
    path = Path(output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode(errors="replace"))  # names of files may be no UTF-8
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path


def render(runs: Sequence[RunData], reload_seconds: int = 0) -> str:
    places = dict(zip([run.name for run in runs], _places(runs), strict=True))
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    return render_page(title, heading(runs), places, sections_of(runs, places), reload_seconds)


def _places(runs: Sequence[RunData]) -> list[int]:
    """Runs of several agents have their agents' colours; those of one agent have one after the other."""
    agents = [run.agent for run in runs]
    return (
        color_index(agents)
        if len(set(agents)) == len(agents)
        else [i % len(PALETTE) for i in range(len(runs))]
    )


def render_page(
    title: str, subtitle: str, places: Places, sections: Sequence[Section], reload_seconds: int = 0
) -> str:
    """`places` are those of the runs that the reader can show and hide; the page of a running job reloads."""
    return fill(
        "report.html.j2",
        title=title,
        subtitle=subtitle,
        runs=[{"name": name, "color": place} for name, place in places.items()],
        sections=sections,
        curves=any(chart.kind == "lines" for section in sections for chart in section.charts),
        charts_json=_charts_json(sections),
        reload_seconds=reload_seconds,
    )


def fill(template: str, **values: Any) -> str:
    """Render a template with the parts that every page has."""
    environment = Environment(loader=PackageLoader("jaxrl_hpc.report"), autoescape=True, trim_blocks=True)
    now = datetime.datetime.now().astimezone()
    return environment.get_template(template).render(
        palette=list(enumerate(zip(PALETTE, DARK_PALETTE, strict=True))),
        made=now.strftime("%Y-%m-%d %H:%M %Z"),
        version=jaxrl_hpc.__version__,
        **values,
    )


def _charts_json(sections: Sequence[Section]) -> Markup:
    charts = [chart.to_json() for section in sections for chart in section.charts]
    text = json.dumps(charts, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # a run's name must not be able to end the script element
