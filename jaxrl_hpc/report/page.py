"""One self-contained HTML page for a run or a comparison of runs.

    write_report(["runs/a", "runs/b"], "comparison.html")

The page holds its data, its script and Plotly itself; a content security policy keeps it from
fetching anything. What it shows is the list of sections in `sections.py`, and `asynchrony.py`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import jaxrl_hpc
from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.report.asynchrony import asynchrony
from jaxrl_hpc.report.data import RunData, load_runs
from jaxrl_hpc.report.plots import heading
from jaxrl_hpc.report.sections import SECTIONS, Colors, Section
from jaxrl_hpc.report.style import color


def write_report(run_dirs: Sequence[str | Path], output: str | Path) -> Path:
    """Make the page; UserError if a directory is not a run with metrics."""
    if not run_dirs:
        raise UserError("a report needs at least one run directory")
    return write_page(render(load_runs(run_dirs)), output)


def write_page(page: str, output: str | Path) -> Path:
    path = Path(output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path


def render(runs: Sequence[RunData]) -> str:
    colors = {run.name: color(index) for index, run in enumerate(runs)}
    makers = (*SECTIONS[:-1], asynchrony, SECTIONS[-1])  # before the many charts of everything else
    sections = [section for make in makers if (section := make(runs, colors)) is not None]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    return render_page(title, heading(runs), colors, sections)


def render_page(title: str, subtitle: str, colors: Colors, sections: Sequence[Section]) -> str:
    """`colors` are those of the runs that the reader can show and hide."""
    environment = Environment(loader=PackageLoader("jaxrl_hpc.report"), autoescape=True, trim_blocks=True)
    return environment.get_template("report.html.j2").render(
        title=title,
        subtitle=subtitle,
        runs=[{"name": name, "color": shade} for name, shade in colors.items()],
        sections=sections,
        charts_json=_charts_json(sections),
        plotly_js=Markup(get_plotlyjs()),
        made=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        version=jaxrl_hpc.__version__,
    )


def _charts_json(sections: Sequence[Section]) -> Markup:
    charts = [chart.to_json() for section in sections for chart in section.charts]
    text = json.dumps(charts, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # a run's name must not be able to end the script element
