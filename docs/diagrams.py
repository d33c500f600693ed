"""The diagrams of the documentation as SVG, drawn when the site is built or by `python docs/diagrams.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent / "images"
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

    def svg(self) -> str:
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
        return "\n".join(lines) + "\n"


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
    picture = Picture(width + left + 14, len(ROOMS) * (height + 10) + 16, "Packages in layers")
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


def sharded() -> Picture:
    picture = Picture(840, 300, "One iteration of the sharded workflow on two ranks")
    for rank, (y, shards) in enumerate(((10, "shards 0–5"), (160, "shards 6–11"))):
        picture.frame(10, y, 820, 130, f"rank {rank}, one device: {shards}")
        picture.box(30, y + 40, 150, 56, BLUE, "unroll", "[T, B / shards]")
        picture.box(230, y + 40, 130, 56, GREEN, "replay", "own part")
        picture.box(400, y + 40, 150, 56, GREEN, "gradient", "own part of the batch")
        picture.box(690, y + 40, 120, 56, GREEN, "apply", "same on all ranks")
        picture.arrow((180, y + 68), (230, y + 68))
        picture.arrow((360, y + 68), (400, y + 68))
    picture.box(575, 118, 90, 64, ORANGE, "mean", "all shards")
    picture.arrow((550, 78), (600, 118))
    picture.arrow((550, 228), (600, 182))
    picture.arrow((640, 118), (690, 82))
    picture.arrow((640, 182), (690, 222))
    picture.arrow((295, 106), (295, 200))
    picture.arrow((295, 200), (295, 106), words="masses, sampled rows", at=(380, 152))
    return picture


def async_() -> Picture:
    picture = Picture(840, 250, "Actors and a learner connected by messages")
    for actor, y in enumerate((20, 140)):
        picture.frame(10, y, 200, 90, f"rank {actor + 1}: actor {actor}")
        picture.box(35, y + 32, 150, 46, BLUE, "unroll", "[T, B]")
    picture.frame(370, 20, 460, 210, "rank 0: learner")
    picture.box(390, 130, 130, 66, ORANGE, "mailbox", "in order of arrival;", "too old: dropped")
    picture.box(560, 130, 110, 66, GREEN, "replay", "or m unrolls", "at once")
    picture.box(710, 130, 104, 66, GREEN, "learn", "K updates")
    picture.box(560, 50, 254, 46, GREEN, "publish", "version + 1")
    picture.arrow((520, 163), (560, 163))
    picture.arrow((670, 163), (710, 163))
    picture.arrow((762, 130), (762, 96))
    picture.arrow((185, 80), (390, 150), words="unroll, version", at=(290, 98))
    picture.arrow((185, 195), (390, 175), words="priorities", at=(290, 202))
    picture.arrow((560, 64), (185, 50), words="newest parameters", at=(285, 42))
    return picture


def rma() -> Picture:
    picture = Picture(840, 250, "Learners read unrolls from actors' memory")
    for actor, y in enumerate((20, 140)):
        picture.frame(10, y, 350, 90, f"actor {actor}")
        picture.box(30, y + 32, 120, 46, BLUE, "unroll", "[T, B]")
        picture.box(200, y + 32, 140, 46, ORANGE, "ring", "in_flight unrolls")
        picture.arrow((150, y + 55), (200, y + 55))
    picture.frame(500, 20, 330, 210, "learner")
    picture.box(520, 140, 130, 60, GREEN, "take", "copy, then claim")
    picture.box(690, 140, 120, 60, GREEN, "learn")
    picture.box(560, 50, 250, 50, ORANGE, "versioned slot", "newest parameters, two buffers")
    picture.arrow((340, 75), (520, 155), words="read", at=(435, 105))
    picture.arrow((340, 195), (520, 180), words="read", at=(435, 204))
    picture.arrow((650, 170), (690, 170))
    picture.arrow((750, 140), (750, 100))
    picture.arrow((620, 50), (620, 8), (90, 8), (90, 52), words="read, if newer", at=(430, 24))
    return picture


def central_inference() -> Picture:
    picture = Picture(840, 250, "One server acts for all environment ranks and learns")
    for rank, y in enumerate((20, 140)):
        picture.frame(10, y, 190, 90, f"environment rank {rank + 1}")
        picture.box(30, y + 32, 150, 46, BLUE, "step B copies")
    picture.frame(370, 20, 460, 210, "server")
    picture.box(390, 90, 120, 60, ORANGE, "requests", "all, or deadline")
    picture.box(560, 40, 140, 60, GREEN, "policy", "one batch; carries")
    picture.box(560, 150, 140, 60, GREEN, "transitions", "unrolls [T, B]")
    picture.box(730, 150, 84, 60, GREEN, "learn")
    picture.arrow((510, 110), (560, 80))
    picture.arrow((510, 130), (560, 170))
    picture.arrow((700, 180), (730, 180))
    picture.arrow((772, 150), (772, 70), (700, 70), words="parameters", at=(768, 62))
    picture.arrow((180, 85), (390, 112), words="observation, reward, flags", at=(285, 122))
    picture.arrow((180, 190), (390, 136))
    picture.arrow((560, 55), (180, 62), words="actions", at=(300, 52))
    return picture


def parameter_server() -> Picture:
    picture = Picture(840, 220, "Workers exchange changes with shared parameters")
    for worker, x in enumerate((20, 600)):
        picture.frame(x, 20, 220, 180, f"worker {worker}")
        picture.box(x + 25, 70, 170, 90, BLUE, "H local updates", "act, remember, learn", "with own replay")
    picture.box(330, 60, 180, 110, ORANGE, "parameters", "a window, or server ranks", "with a shard each")
    picture.arrow((215, 95), (330, 95), words="change", at=(285, 86))
    picture.arrow((330, 140), (215, 140), words="parameters", at=(285, 160))
    picture.arrow((625, 95), (510, 95), words="change", at=(555, 86))
    picture.arrow((510, 140), (625, 140), words="parameters", at=(555, 160))
    return picture


def gossip() -> Picture:
    picture = Picture(840, 190, "Ranks average their replicas with neighbours")
    for rank, x in enumerate((20, 300, 580)):
        picture.frame(x, 20, 240, 120, f"rank {rank}")
        picture.box(x + 15, 60, 110, 60, BLUE, "H updates", "act and learn")
        picture.box(x + 145, 60, 80, 60, ORANGE, "replica")
        picture.arrow((x + 125, 90), (x + 145, 90))
    for left in (245, 525):
        picture.arrow((left, 105), (left + 70, 105))
        picture.arrow((left + 70, 105), (left, 105))
    picture.arrow((765, 120), (765, 165), (205, 165), (205, 120))
    picture.arrow((205, 165), (205, 120), words="read the neighbours' replicas and average", at=(485, 182))
    return picture


def dyna() -> Picture:
    picture = Picture(840, 230, "One rank acts in the real environment, others plan with a learned model")
    picture.box(20, 80, 160, 70, BLUE, "last rank", "real environment")
    picture.box(270, 80, 120, 70, ORANGE, "rank 0", "replay")
    for planner, y in enumerate((20, 140)):
        picture.box(480, y, 200, 70, GREEN, f"planner {planner}", "model, imagined windows,", "gradient")
    picture.box(730, 90, 90, 50, ORANGE, "mean")
    picture.arrow((180, 115), (270, 115), words="unrolls", at=(225, 106))
    picture.arrow((390, 105), (480, 60), words="part of a batch", at=(405, 66))
    picture.arrow((390, 125), (480, 170))
    picture.arrow((680, 60), (750, 90))
    picture.arrow((680, 170), (750, 140))
    picture.arrow((790, 140), (790, 218), (100, 218), (100, 150), words="parameters", at=(300, 212))
    return picture


def packing() -> Picture:
    picture = Picture(840, 210, "How trials of a sweep are packed into tasks")
    picture.box(10, 80, 130, 50, GREY, "sweep file")
    picture.box(190, 72, 150, 66, BLUE, "trials", "combinations × seeds")
    for y, name, note in ((20, "program A", "n_step = 1"), (130, "program B", "n_step = 8")):
        picture.box(400, y, 130, 56, GREEN, name, note)
    for y, name in ((23, "task 0"), (100, "task 1"), (160, "task 2")):
        picture.box(580, y, 130, 46, ORANGE, name, "lanes side by side")
    picture.box(745, 85, 85, 56, GREY, "results", "one a trial")
    picture.arrow((140, 105), (190, 105))
    picture.arrow((340, 95), (400, 55))
    picture.arrow((340, 115), (400, 150))
    picture.arrow((530, 46), (580, 46))
    picture.arrow((530, 150), (580, 125))
    picture.arrow((530, 165), (580, 183))
    picture.arrow((710, 46), (770, 85))
    picture.arrow((710, 122), (745, 116))
    picture.arrow((710, 183), (770, 141))
    return picture


DIAGRAMS = (
    rooms, fused, rma_queue, sharded, async_, rma, central_inference, parameter_server, gossip, dyna, packing,
)  # fmt: skip


def draw() -> dict[str, str]:
    """File name -> SVG."""
    return {f"{make.__name__.rstrip('_')}.svg": make().svg() for make in DIAGRAMS}


def write(folder: Path = IMAGES) -> None:
    """Files that are already so are left alone."""
    for name, svg in draw().items():
        path = folder / name
        if not path.exists() or path.read_text() != svg:
            path.write_text(svg)


if __name__ == "__main__":
    write()
