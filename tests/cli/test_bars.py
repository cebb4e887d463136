"""What a terminal shows of steps that are made."""

import io

import pytest
from tqdm import tqdm

from omnistage.cli import bars
from omnistage.cli.bars import DrawingBar, LoadingBar
from omnistage.runtime.base import ReplicaStatus


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    screen = Terminal()
    monkeypatch.setattr(bars, "tqdm", lambda **given: tqdm(file=screen, ncols=60, **given))
    return screen


def test_steps_of_all_pictures_fill_one_bar(terminal: Terminal) -> None:
    """Fault: each picture begins the bar anew, or it is full when the first one is done."""
    bar = DrawingBar(2)
    for step, index in ((1, 0), (1, 1), (2, 0), (3, 0), (4, 0), (2, 1)):
        bar.show({"step": step, "steps": 4, "index": index})
    assert bar.steps == 6
    assert "drawing: 6/8" in terminal.getvalue().split("\r")[-1]
    bar.close()
    assert terminal.getvalue().split("\r")[-1].strip() == ""


def test_nothing_is_drawn_without_steps(terminal: Terminal) -> None:
    """Fault: a bar for an answer that is text."""
    DrawingBar(1).close()
    assert terminal.getvalue() == ""


def test_loading_is_that_of_all_replicas(terminal: Terminal) -> None:
    """Fault: one ready stage of two counts as all."""
    bar = LoadingBar()
    bar.show([ReplicaStatus("a", 0, "ready"), ReplicaStatus("b", 0, "starting", progress=0.5)])
    assert "loading:  75%" in terminal.getvalue()
    bar.close()
