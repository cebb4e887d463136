"""The picture of a timeline, as text: what is where, and that it is well-formed whatever it is told."""

import xml.etree.ElementTree as ET

from omnistage.obs.timeline import LEFT, RIGHT, TROUBLE, WIDTH, Arrow, Note, Picture, Span, svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(**parts: tuple[object, ...]) -> ET.Element:
    return ET.fromstring(svg(Picture("title", "legend", ("thinker", "speaker", "client"), **parts)))  # type: ignore[arg-type]


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_the_axis_spans_the_last_moment_in_round_steps() -> None:
    """Fault: a scale that nobody can read, or a moment outside the picture."""
    root = drawn(spans=(Span(0, 0.0, 437.0, "works"),))
    bar = next(element for element in root.iter(f"{SVG}rect") if element.find(f"{SVG}title") is not None)
    assert (float(bar.attrib["x"]), float(bar.attrib["width"])) == (LEFT, WIDTH - LEFT - RIGHT)
    marks = [text for text in texts(root) if text.isdigit()]
    assert marks == [str(mark) for mark in range(0, 438, 50)]


def test_nothing_to_draw_is_a_picture_too() -> None:
    """Fault: a request that ended at once divides by zero."""
    assert {"thinker", "speaker", "client"} <= set(texts(drawn()))


def test_words_are_escaped() -> None:
    """Fault: an error's message breaks the file."""
    root = drawn(notes=(Note(1.0, "<b> & died", True),), spans=(Span(0, 0.0, 9.0, 'x<"y">'),))
    assert "<b> & died" in texts(root)


def test_an_arrow_goes_from_lane_to_lane_in_either_direction() -> None:
    """Fault: a hand-over that points at its source."""
    root = drawn(arrows=(Arrow(0, 0.0, 2, 10.0), Arrow(2, 0.0, 0, 10.0)))
    ways = [line.attrib for line in root.iter(f"{SVG}line") if line.find(f"{SVG}title") is not None]
    assert float(ways[0]["y1"]) < float(ways[0]["y2"])
    assert float(ways[1]["y1"]) > float(ways[1]["y2"])
    assert all(float(way["x1"]) < float(way["x2"]) for way in ways)


def test_what_is_wrong_is_red_and_notes_do_not_lie_on_each_other() -> None:
    """Fault: a death that looks like an ordinary end, or two words in one place."""
    root = drawn(spans=(Span(0, 0.0, 5.0, "x", troubled=True),), notes=(Note(5.0, "died"), Note(5.0, "attempt 2")))
    assert [line for line in root.iter(f"{SVG}line") if line.attrib["stroke"] == TROUBLE]
    places = {element.text: (element.attrib["x"], element.attrib["y"]) for element in root.iter(f"{SVG}text")}
    assert places["died"] != places["attempt 2"]
