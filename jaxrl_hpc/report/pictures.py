"""The report's section of pictures: those in plots/, and the episode with a slider."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from jaxrl_hpc.report.charts import Places
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.sections import Section
from jaxrl_hpc.report.style import title

FRAMES = 48  # of an episode on a page: smooth enough, and small


def pictures(runs: Sequence[RunData], places: Places) -> Section | None:
    """All pictures but the learning curve, which the page shows as an interactive chart."""
    html = Markup("")
    for run in runs:
        folder = run.path / "plots"
        suffix = f", {run.name}" if len(runs) > 1 else ""
        film = folder / "episode.gif"
        if film.is_file():
            html += scrubber(film, f"An episode{suffix}")
        for path in sorted(folder.glob("*.png")):
            if path.stem != "learning_curve" and not (path.stem == "episode" and film.is_file()):
                html += Markup(
                    '<figure class="card picture"><figcaption>{0}</figcaption>'
                    '<img alt="{0}" src="data:image/png;base64,{1}"></figure>'
                ).format(f"{title(path.stem)}{suffix}", _encoded(path.read_bytes()))
    return Section("pictures", "Pictures", html) if html else None


def scrubber(film: Path, label: str) -> Markup:
    """The frames of a GIF as one tall picture, and a slider that moves it; empty if it cannot be read."""
    from PIL import Image, ImageSequence

    try:
        with Image.open(film) as gif:
            frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(gif)]
    except OSError:
        return Markup("")
    shown = [
        frames[round(i * (len(frames) - 1) / max(1, FRAMES - 1))] for i in range(min(FRAMES, len(frames)))
    ]
    if len(frames) <= FRAMES:
        shown = frames
    width, height = shown[0].size
    sheet = Image.new("RGB", (width, height * len(shown)), "white")
    for index, frame in enumerate(shown):
        sheet.paste(frame, (0, index * height))
    buffer = io.BytesIO()
    sheet.quantize(64, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return Markup(
        '<figure class="card picture episode" data-frames="{n}"><figcaption>{label}</figcaption>'
        '<div class="film" role="img" aria-label="{label}" '
        'style="aspect-ratio: {w} / {h}; max-width: {w2}px">'
        '<img alt="" src="data:image/png;base64,{data}"></div>'
        '<div class="player"><button type="button" class="play" aria-pressed="false">Play</button>'
        '<input type="range" min="0" max="{last}" value="0" aria-label="Moment of the episode">'
        "</div></figure>"
    ).format(
        n=len(shown), last=len(shown) - 1, label=label, w=width, h=height, w2=2 * width,
        data=_encoded(buffer.getvalue()),
    )  # fmt: skip


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
