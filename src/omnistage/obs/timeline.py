"""A timeline as a picture: lanes with spans and ticks, arrows between lanes, an axis in milliseconds; out comes SVG text.

Draws plain values and knows nothing of what they stand for. Times are milliseconds from the picture's left edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, LANE, BAR = 1280, 120, 24, 84, 84, 26
"""Pixels: the picture, its margins, the height of a lane and of a bar in it."""
COLOURS = ("#2f6db5", "#c2571a", "#2f8f5b", "#8a4fa3", "#a3872a", "#b03a5b")
SOFT = ("#9dbbe0", "#eab493", "#9fd0b3", "#c9aed7", "#d6c88f", "#dfa3b3")
"""Of arrows and names, and of bars, lane by lane."""
QUIET = "#dfe2e7"
INK = "#20242b"
TROUBLE = "#c0262d"
MOST_GRIDLINES = 12
MIN_LABEL_PX = 46
PX_PER_CHARACTER = 6.2


@dataclass(frozen=True, slots=True)
class Span:
    """`quiet` ones are grey, `troubled` ones have a red end. The label is shown where there is room."""

    lane: int
    start_ms: float
    end_ms: float
    label: str
    quiet: bool = False
    troubled: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """Something leaves `source` and reaches `target`, both lanes; both ends are marked by a tick."""

    source: int
    start_ms: float
    target: int
    end_ms: float


@dataclass(frozen=True, slots=True)
class Note:
    """A moment that matters to all lanes."""

    at_ms: float
    text: str
    troubled: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """`lanes` are names, from top to bottom; `legend` is a line below the title."""

    title: str
    legend: str
    lanes: tuple[str, ...]
    spans: tuple[Span, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def end_ms(self) -> float:
        """The last moment of all; at least 1, so that there is an axis."""
        moments = [span.end_ms for span in self.spans] + [arrow.end_ms for arrow in self.arrows]
        return max([1.0, *moments, *(note.at_ms for note in self.notes)])


def svg(picture: Picture) -> str:
    """The whole file. Equal pictures give equal text."""
    height = TOP + LANE * len(picture.lanes) + 44
    scale = _Scale(picture.end_ms, TOP + LANE * len(picture.lanes))
    size = f'width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect {size} fill="white"/>',
        _text(16, 24, picture.title, size=15, weight="bold"),
        _text(16, 42, picture.legend, colour="#606774"),
        *_grid(scale),
        *_lanes(picture.lanes),
        *(_way(scale, arrow) for arrow in picture.arrows),  # below the bars of the lanes that it passes
        *(part for span in picture.spans for part in _span(scale, span)),
        *(part for arrow in picture.arrows for part in _ends(scale, arrow)),
        *_notes(scale, picture.notes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class _Scale:
    end_ms: float
    bottom: int

    def x(self, at_ms: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * max(0.0, at_ms) / self.end_ms, 2)

    @property
    def step_ms(self) -> float:
        """Between two grid lines: 1, 2 or 5 times a power of ten."""
        rough = self.end_ms / MOST_GRIDLINES
        power = 10.0 ** math.floor(math.log10(rough))
        return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _grid(scale: _Scale) -> Iterator[str]:
    for index in range(int(scale.end_ms / scale.step_ms) + 1):
        at_ms = index * scale.step_ms
        x = scale.x(at_ms)
        yield _line(x, TOP - 6, x, scale.bottom, "#eceef1")
        yield _text(x, scale.bottom + 16, f"{at_ms:g}", anchor="middle", colour="#606774")
    yield _text(WIDTH - RIGHT, scale.bottom + 34, "ms", anchor="end", colour="#606774")


def _lanes(names: Sequence[str]) -> Iterator[str]:
    for index, name in enumerate(names):
        middle = _middle(index)
        yield _line(LEFT, middle, WIDTH - RIGHT, middle, "#d7dbe0")
        yield _text(LEFT - 12, middle + 4, name, anchor="end", size=13, weight="bold", colour=_colour(index))


def _span(scale: _Scale, span: Span) -> Iterator[str]:
    left, right = scale.x(span.start_ms), scale.x(span.end_ms)
    width, top = max(1.0, right - left), _middle(span.lane) - BAR / 2
    fill = QUIET if span.quiet else SOFT[span.lane % len(SOFT)]
    hint = f"<title>{escape(span.label)}: {span.start_ms:.1f} to {span.end_ms:.1f} ms</title>"
    yield (f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{BAR}" rx="2" fill="{fill}">{hint}</rect>')
    if span.troubled:
        yield _line(right, top - 4, right, top + BAR + 4, TROUBLE, width=3)
    if width > max(MIN_LABEL_PX, PX_PER_CHARACTER * len(span.label)):
        yield _text(left + 5, top - 5, span.label)


def _places(scale: _Scale, arrow: Arrow) -> tuple[float, float, float, float, int]:
    """From the near edge of one bar to that of the other, and 1 for downwards, -1 for upwards."""
    down = 1 if arrow.target > arrow.source else -1
    start, end = _middle(arrow.source) + down * BAR / 2, _middle(arrow.target) - down * BAR / 2
    return scale.x(arrow.start_ms), start, scale.x(arrow.end_ms), end, down


def _way(scale: _Scale, arrow: Arrow) -> str:
    x1, y1, x2, y2, _ = _places(scale, arrow)
    hint = f"<title>{arrow.start_ms:.1f} to {arrow.end_ms:.1f} ms</title>"
    stroke = f'stroke="{_colour(arrow.source)}" stroke-opacity="0.7"'
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" {stroke}>{hint}</line>'


def _ends(scale: _Scale, arrow: Arrow) -> Iterator[str]:
    """A tick in each bar, and the head."""
    x1, y1, x2, y2, down = _places(scale, arrow)
    colour = _colour(arrow.source)
    yield f'<path d="M{x2:g} {y2:g} l-3 {-7 * down} h6 z" fill="{colour}"/>'
    yield _line(x1, y1 - down * BAR, x1, y1, colour)
    yield _line(x2, y2, x2, y2 + down * BAR, colour)


def _notes(scale: _Scale, notes: Sequence[Note]) -> Iterator[str]:
    """Their words stand above the lanes; one that would run out of the picture, or into the next, goes to the other side or up."""
    rows: list[float] = [0.0, 0.0]
    for note in sorted(notes, key=lambda note: note.at_ms):
        x, colour = scale.x(note.at_ms), TROUBLE if note.troubled else INK
        width = PX_PER_CHARACTER * len(note.text)
        left = min(x + 4, WIDTH - RIGHT - width)
        row = 0 if left >= rows[0] else 1
        rows[row] = left + width + 8
        yield (
            f'<line x1="{x:g}" y1="{TOP - 8}" x2="{x:g}" y2="{scale.bottom}" stroke="{colour}" stroke-dasharray="3 3">'
            f"<title>{escape(note.text)}: {note.at_ms:.1f} ms</title></line>"
        )
        yield _text(max(16.0, left), TOP - 12 - 13 * row, note.text, colour=colour)


def _middle(lane: int) -> float:
    return TOP + LANE * lane + LANE / 2


def _colour(lane: int) -> str:
    return COLOURS[lane % len(COLOURS)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="{width:g}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 11,
    weight: str = "normal",
    colour: str = INK,
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
