"""Draws the pictures of docs/architecture.md into docs/images: python scripts/studies/architecture.py"""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
BLUE, GREEN, ORANGE, GREY = "#dbe7f6", "#dcefdf", "#fbe8d0", "#eeeeee"
LINE, INK, FAINT = "#5b6573", "#1d232b", "#68717d"


class Picture:
    """Shapes on a white page."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title = (width, height), title
        self.shapes: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 13,
        color: str = INK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{weight}'
        self.shapes.append(f"<text {place}>{escape(words)}</text>")

    def box(
        self, x: float, y: float, width: float, height: float, color: str, words: str = "", *notes: str
    ) -> None:
        """A name in bold, and notes below it."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
        self.shapes.append(f'<rect {place} fill="{color}" stroke="{LINE}"/>')
        if words:
            top = y + height / 2 + 5 - 8.5 * len(notes)
            self.text(x + width / 2, top, words, bold=True)
            for row, note in enumerate(notes, 1):
                self.text(x + width / 2, top + 17 * row, note, 12, FAINT)

    def frame(self, x: float, y: float, width: float, height: float, words: str) -> None:
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="9"'
        self.shapes.append(f'<rect {place} fill="#fafbfc" stroke="{LINE}" stroke-dasharray="5 4"/>')
        self.text(x + 12, y + 20, words, 12, FAINT, "start")

    def arrow(
        self, *points: tuple[float, float], words: str = "", at: tuple[float, float] | None = None
    ) -> None:
        path = " ".join(f"{'M' if i == 0 else 'L'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
        style = f'fill="none" stroke="{LINE}" stroke-width="1.5" marker-end="url(#head)"'
        self.shapes.append(f'<path d="{path}" {style}/>')
        if words:
            x, y = at or ((points[0][0] + points[-1][0]) / 2, (points[0][1] + points[-1][1]) / 2 - 7)
            self.text(x, y, words, 12, FAINT)

    def save(self, path: Path) -> None:
        width, height = self.size
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker>'
        )
        place = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {place}',
            ' font-family="system-ui, Helvetica, Arial, sans-serif" role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<defs>{head}</defs>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *self.shapes,
            "</svg>",
        ]
        path.write_text("\n".join(lines) + "\n")


ROOMS: list[tuple[str, list[tuple[str, str]]]] = [
    (GREY, [("cli", "one file per command"), ("api", "import jaxrl_hpc as rl")]),
    (
        GREY,
        [
            ("sweeps", "many trials"),
            ("export", "policies alone"),
            ("scaling", "more ranks"),
            ("bench", "speed"),
        ],
    ),
    (ORANGE, [("runtime", "build, compile, train, evaluate: one run directory")]),
    (ORANGE, [("config", "YAML → validated sections; names → components")]),
    (
        BLUE,
        [
            (
                "workflows",
                "fused · offline · sharded · actor_learner · central_inference · parameter_server · gossip",
            )
        ],
    ),
    (BLUE, [("rollout", "acting: builds every Transition")]),
    (GREEN, [("agents", "algorithms"), ("envs", "environments"), ("replay", "memories")]),
    (GREEN, [("networks", "flax modules")]),
    (
        GREY,
        [
            ("ops", "maths"),
            ("comm", "MPI"),
            ("checkpoint", "states"),
            ("metrics", "numbers"),
            ("runs", "folders"),
            ("report", "pages"),
            ("datasets", "recordings"),
        ],
    ),
    (
        GREY,
        [
            ("types", "contracts"),
            ("errors", "UserError"),
            ("schema", "settings"),
            ("user_code", "module:name"),
            ("read_files", "YAML, JSON"),
        ],
    ),
]


def rooms() -> Picture:
    """Layers from top to bottom; an import may only go down."""
    width, height, left = 780, 46, 46
    picture = Picture(width + left + 14, len(ROOMS) * (height + 10) + 16, "Rooms of the package in layers")
    for row, (color, names) in enumerate(ROOMS):
        y = 10 + row * (height + 10)
        each = (width - 10 * (len(names) - 1)) / len(names)
        for column, (name, note) in enumerate(names):
            picture.box(left + column * (each + 10), y, each, height, color, name, note)
    bottom = len(ROOMS) * (height + 10)
    picture.arrow((24, 14), (24, bottom))
    picture.shapes.append(
        f'<text transform="translate(17 {bottom / 2:g}) rotate(-90)" font-size="12" text-anchor="middle" '
        f'fill="{FAINT}">imports</text>'
    )
    return picture


def fused() -> Picture:
    picture = Picture(840, 268, "One iteration of the fused workflow")
    picture.frame(10, 10, 820, 214, "one compiled program on one device; the state goes in and out donated")
    picture.box(30, 76, 170, 66, BLUE, "rollout.unroll", "act, step B copies,", "T times")
    picture.box(320, 76, 130, 66, GREEN, "replay.add", "in place")
    picture.box(540, 46, 120, 50, GREEN, "sample", "windows [n, N]")
    picture.box(690, 46, 124, 50, GREEN, "gradient")
    picture.box(690, 128, 124, 50, GREEN, "apply", "optimiser, target")
    picture.box(540, 128, 120, 50, GREEN, "prioritise", "in place")
    picture.arrow((200, 109), (320, 109), words="Transition [T, B]", at=(258, 100))
    picture.arrow((450, 99), (540, 76))
    picture.arrow((660, 71), (690, 71))
    picture.arrow((752, 96), (752, 128))
    picture.arrow((690, 153), (660, 153))
    picture.arrow((600, 128), (600, 96), words="K ×", at=(622, 117))
    picture.arrow(
        (752, 178),
        (752, 204),
        (115, 204),
        (115, 142),
        words="agent.actor: parameters to act with",
        at=(430, 198),
    )
    picture.text(420, 248, "leaves the program: sums of metrics, once per chunk", 12, FAINT)
    return picture


def rma_queue() -> Picture:
    picture = Picture(840, 330, "One unroll in the rma_queue workflow")
    picture.frame(10, 10, 250, 310, "actor rank")
    picture.frame(300, 10, 530, 310, "learner rank")
    picture.box(30, 50, 210, 60, BLUE, "newest parameters", "actor.py: Policies")
    picture.box(30, 140, 210, 60, BLUE, "rollout.unroll", "compiled, [T, B]")
    picture.box(30, 230, 210, 66, BLUE, "pack", "header: actor, sequence, version", "comm/buffers.py")
    picture.box(330, 50, 180, 60, ORANGE, "versioned slot", "parameters, in a window")
    picture.box(330, 233, 180, 60, ORANGE, "ring queue", "one per actor, in a window")
    picture.box(
        620, 230, 190, 66, GREEN, "mailbox", "lag = version − header's;", "older than max_lag: dropped"
    )
    picture.box(620, 140, 190, 60, GREEN, "iterate", "add, K × learn; compiled")
    picture.box(620, 50, 190, 60, GREEN, "publish", "version + 1")
    picture.arrow((330, 80), (240, 80), words="read", at=(285, 73))
    picture.arrow((135, 110), (135, 140))
    picture.arrow((135, 200), (135, 230))
    picture.arrow((240, 263), (330, 263), words="write", at=(281, 256))
    picture.arrow((510, 263), (620, 263), words="take", at=(565, 256))
    picture.arrow((715, 230), (715, 200))
    picture.arrow((715, 140), (715, 110))
    picture.arrow((620, 80), (510, 80), words="store", at=(565, 73))
    picture.text(460, 176, "queue full: the actor waits (backpressure)", 12, FAINT)
    return picture


if __name__ == "__main__":
    for draw in (rooms, fused, rma_queue):
        draw().save(IMAGES / f"{draw.__name__}.svg")
