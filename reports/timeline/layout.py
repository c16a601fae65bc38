"""From a scene to shapes with pixels: what goes where, and in which order it is painted."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from reports.timeline.scene import START, Bar, Mark, Scene, Wait

FIT_WIDTH = 1120
"""What a timeline tries to get by with: a page of 1280 pixels, less its margins."""

_STAGE_WIDTH, _RANK_WIDTH, _RIGHT = 56, 84, 150
_LABELS = _STAGE_WIDTH + _RANK_WIDTH
_TOP, _BOTTOM = 46, 8
_COLUMN_START, _COLUMN_END = 12, 4
_NARROWEST_SLOT, _WIDEST_SLOT = 5.0, 60.0
_START_WIDTH = 38
_STAGE_GAP = 6
# What a label needs: a bar narrower than its text shows none.
_CHARACTER = 6.2
_BULGE, _BULGE_PER_LANE, _MOST_BULGE, _ASIDE = 24, 8, 80, 4


class Rect(NamedTuple):
    """rank: for what can be pointed at, else -1. told: what it says then."""

    css: str
    x: float
    y: float
    width: float
    height: float
    rank: int = -1
    told: str = ""


class Path(NamedTuple):
    """css, svg path data, and as in Rect."""

    css: str
    data: str
    rank: int = -1
    told: str = ""


class Text(NamedTuple):
    """anchor: start, middle or end."""

    css: str
    x: float
    y: float
    text: str
    anchor: str = "start"


@dataclass
class Drawing:
    """Shapes by layer, the lowest first; all in pixels."""

    width: float = 0
    height: float = 0
    ground: list[Rect] = field(default_factory=list)
    lines: list[Path] = field(default_factory=list)
    bars: list[Rect] = field(default_factory=list)
    arrows: list[Path] = field(default_factory=list)
    marks: list[Path] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)


def lay_out(scene: Scene) -> Drawing:
    """The drawing of a scene, no wider than ``FIT_WIDTH`` if that can be."""
    return _Layout(scene).drawn()


class _Layout:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        size = scene.topology.size
        self._lane = 46 if size <= 8 else 34 if size <= 16 else 22
        self._slot = self._slot_width()
        self._left: dict[int, float] = {}
        x: float = _LABELS
        for step in scene.steps:
            self._left[step] = x
            x += self._column_width(step)
        self._end_x = x
        self._last_x = {bar.rank: self._bar_span(bar)[1] for bar in scene.bars}
        self._drawing = Drawing(
            width=round(x + _RIGHT, 1), height=self._lane_top(size - 1) + self._lane + _BOTTOM
        )

    def drawn(self) -> Drawing:
        """Paint all layers."""
        self._lanes()
        self._columns()
        self._divergence()
        for bar in self._scene.bars:
            self._bar(bar)
        self._links()
        for wait in sorted(self._scene.waits, key=lambda wait: wait.cycle):
            self._wait(wait)
        for mark in self._scene.marks:
            self._mark(mark)
        return self._drawing

    # Where things are

    def _slot_width(self) -> float:
        steps = [step for step in self._scene.steps if step != START]
        fixed = _LABELS + _RIGHT + len(steps) * (_COLUMN_START + _COLUMN_END)
        fixed += _START_WIDTH * (START in self._scene.steps)
        slots = sum(max(1, self._scene.slots[step]) for step in steps)
        room = (FIT_WIDTH - fixed) / max(1, slots)
        return max(_NARROWEST_SLOT, min(_WIDEST_SLOT, room))

    def _column_width(self, step: int) -> float:
        if step == START and not self._scene.slots[step]:
            return _START_WIDTH
        return _COLUMN_START + max(1, self._scene.slots[step]) * self._slot + _COLUMN_END

    def _slot_x(self, step: int, slot: float) -> float:
        """The left edge of a slot."""
        return self._left[step] + _COLUMN_START + slot * self._slot

    def _lane_top(self, rank: int) -> float:
        return _TOP + rank * self._lane + self._scene.topology.coords(rank).pp * _STAGE_GAP

    def _bar_middle(self, rank: int) -> float:
        return self._lane_top(rank) + self._lane * 0.64

    def _mark_line(self, rank: int) -> float:
        return self._lane_top(rank) + self._lane * 0.2

    # The ground

    def _lanes(self) -> None:
        topology = self._scene.topology
        for stage in range(topology.pp):
            ranks = topology.stage(stage)
            top, bottom = self._lane_top(ranks[0]), self._lane_top(ranks[-1]) + self._lane
            self._drawing.ground.append(
                Rect("stage", 0, top, self._drawing.width, round(bottom - top, 1))
            )
            self._text("stage-name", 8, top + 16, f"stage {stage}")
            for rank in ranks:
                self._lane_labels(rank)

    def _lane_labels(self, rank: int) -> None:
        topology = self._scene.topology
        at = topology.coords(rank)
        y = self._lane_top(rank) + self._lane / 2 + 4
        side = self._scene.sides.get(rank, "")
        place = f"tp{at.tp}" + (f" cp{at.cp}" if topology.cp > 1 else "")
        self._text(f"rank {side}", _STAGE_WIDTH + 4, y, f"rank {rank}")
        self._text("place", _LABELS - 6, y, place, "end")
        lane = self._scene.lanes[rank]
        self._text("ended" if lane.well else "ended badly", self._end_x + 6, y, lane.ended)
        life = f"M{_LABELS + 2} {self._bar_middle(rank):.1f}H{self._stands_at(rank):.1f}"
        self._drawing.lines.append(Path("life", life))

    def _columns(self) -> None:
        height = self._drawing.height - _BOTTOM
        for step in self._scene.steps:
            x = round(self._left[step], 1)
            self._drawing.lines.append(Path("step", f"M{x} {_TOP - 18}V{height}"))
            name = "start" if step == START else str(step)
            self._text("step-name", x + 4, _TOP - 6, name)
        self._text("axis", _LABELS - 6, _TOP - 6, "step", "end")

    def _divergence(self) -> None:
        first = self._scene.divergence
        if first is None or first.step not in self._left:
            return
        x, width = self._left[first.step], self._column_width(first.step)
        where = first.where() if first.channel != "rank" else f"step {first.step}"
        ends = x > self._drawing.width / 2
        self._text(
            "diverged",
            x + width if ends else x,
            14,
            f"first divergence: {where}",
            "end" if ends else "start",
        )
        self._drawing.lines.append(Path("diverged", f"M{x:.1f} 20H{x + width:.1f}"))
        for rank, side in self._scene.sides.items():
            told = f"rank {rank}, {side or 'either side'}: {first.did.get(str(rank), '')}"
            self._drawing.ground.append(
                Rect(
                    f"cell {side}",
                    round(x + 1, 1),
                    round(self._lane_top(rank) + 1, 1),
                    round(width - 2, 1),
                    self._lane - 2,
                    rank,
                    told,
                )
            )

    # What happened

    def _bar(self, bar: Bar) -> None:
        x, right = self._bar_span(bar)
        tall = self._lane * {"collective": 0.5, "wait": 0.16}.get(bar.kind, 0.36)
        middle = self._bar_middle(bar.rank)
        css = " ".join(
            [
                bar.kind,
                *(["model"] if bar.model else []),
                *(["stuck"] if bar.stuck else []),
                *([bar.side] if bar.side else []),
            ]
        )
        self._drawing.bars.append(
            Rect(
                css,
                round(x, 1),
                round(middle - tall / 2, 1),
                round(right - x, 1),
                round(tall, 1),
                bar.rank,
                bar.told,
            )
        )
        fits = len(bar.label) * _CHARACTER < right - x - 4 and tall >= 12
        if bar.label and fits and bar.kind != "wait":
            self._text("value", (x + right) / 2, middle + 3.5, bar.label, "middle")

    def _bar_span(self, bar: Bar) -> tuple[float, float]:
        gap = min(2.0, self._slot * 0.15)
        return (
            self._slot_x(bar.step, bar.first) + gap / 2,
            self._slot_x(bar.step, bar.last + 1) - gap / 2,
        )

    def _links(self) -> None:
        bars = self._scene.bars
        for link in self._scene.links:
            start, end = bars[link.start], bars[link.end]
            x, y = self._left_at(start), self._bar_middle(start.rank)
            to_x, to_y = self._left_at(end), self._bar_middle(end.rank)
            if link.kind == "message":
                down = 1 if to_y > y else -1
                y, to_y = y + down * self._lane * 0.18, to_y - down * self._lane * 0.2
            line = f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"
            model = " model" if start.model and end.model else ""
            self._drawing.arrows.append(Path(link.kind + model, line))

    def _left_at(self, bar: Bar) -> float:
        """The middle of the slot in which an operation was left: there its effect was."""
        return self._slot_x(bar.step, bar.last + 0.5)

    def _wait(self, wait: Wait) -> None:
        x, y = self._stands_at(wait.rank), self._bar_middle(wait.rank)
        to_x, to_y = self._stands_at(wait.awaited), self._bar_middle(wait.awaited)
        # Two that wait for each other get one arc inside the other.
        y, to_y = y - _ASIDE, to_y + _ASIDE
        lanes = abs(wait.awaited - wait.rank)
        bulge = min(_MOST_BULGE, _BULGE + _BULGE_PER_LANE * lanes) * (1.6 if to_y > y else 1)
        out = max(x, to_x) + bulge
        line = f"M{x:.1f} {y:.1f}C{out:.1f} {y:.1f} {out:.1f} {to_y:.1f} {to_x + 2:.1f} {to_y:.1f}"
        css = "cycle" if wait.cycle else "behind"
        self._drawing.arrows.append(Path(css, line, wait.rank, wait.told))

    def _stands_at(self, rank: int) -> float:
        """The right end of the last thing the rank did."""
        lane = self._scene.lanes[rank]
        if lane.well:
            return self._end_x
        return max(self._last_x.get(rank, 0.0), self._left.get(lane.step, _LABELS) + 4.0)

    def _mark(self, mark: Mark) -> None:
        if mark.slot < 0:
            x = self._left[mark.step] + (14 if mark.step == START else 6)
        else:
            x = self._slot_x(mark.step, mark.slot + 1)
        line = self._mark_line(mark.rank)
        if mark.kind == "raised":
            x, line = self._stands_at(mark.rank) + 1, self._bar_middle(mark.rank)
        elif mark.kind == "fault" and mark.step != START:
            x += 7
        size = min(4.5, self._lane * 0.17)
        css = mark.kind + (" many" if mark.number > 1 else "")
        self._drawing.marks.append(Path(css, _glyph(mark, x, line, size), mark.rank, mark.told))
        if mark.number > 1 and self._lane >= 30 and mark.kind in ("ready", "done"):
            self._text("count", x + size + 1.5, line + 3, str(mark.number))

    def _text(self, css: str, x: float, y: float, text: str, anchor: str = "start") -> None:
        self._drawing.texts.append(Text(css.strip(), round(x, 1), round(y, 1), text, anchor))


def _glyph(mark: Mark, x: float, y: float, size: float) -> str:
    """A ring or dot, a triangle, a cross."""
    if mark.kind in ("ready", "done"):
        half = f"a{size:.1f} {size:.1f} 0 1 0"
        return f"M{x - size:.1f} {y:.1f}{half} {2 * size:.1f} 0{half} {-2 * size:.1f} 0z"
    if mark.kind == "fault":
        return f"M{x:.1f} {y - size:.1f}l{size:.1f} {2 * size:.1f}h{-2 * size:.1f}z"
    return "".join(_crossed(x, y, size))


def _crossed(x: float, y: float, size: float) -> Iterator[str]:
    yield f"M{x - size:.1f} {y - size:.1f}l{2 * size:.1f} {2 * size:.1f}"
    yield f"M{x - size:.1f} {y + size:.1f}l{2 * size:.1f} {-2 * size:.1f}"
