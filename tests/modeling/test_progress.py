"""What loaders tell while they load, and who hears it."""

import threading

import pytest

from omnistage.modeling import progress
from omnistage.modeling.progress import MOST, listening, loading_of, reading_together, tell_bytes

Told = list[tuple[float, str]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What a listener without a pause hears."""
    monkeypatch.setattr(progress, "LEAST_PAUSE_S", 0.0)
    return []


def test_bytes_become_a_fraction_and_a_line(told: Told) -> None:
    """Fault: 100 % before the stage has loaded, or a division by nothing for an empty model."""
    with listening(lambda fraction, note: told.append((fraction, note))):
        tell_bytes(0, 0)
        tell_bytes(30_000_000, 120_000_000)
        tell_bytes(130_000_000, 120_000_000)
    assert told == [(0.25, "30 of 120 MB of weights"), (MOST, "130 of 120 MB of weights")]


def test_readers_of_one_model_tell_of_all_of_it(told: Told) -> None:
    """Fault: the first of several parts, a small one, is told as nearly the whole, and the large ones are not told at all."""
    with listening(lambda fraction, note: told.append((fraction, note))):
        with reading_together(100_000_000):
            for part_nbytes in (10_000_000, 70_000_000):
                loading_of(part_nbytes).took(part_nbytes)
        loading_of(100_000_000).took(90_000_000)
    assert told == [(part / 100, f"{part} of 100 MB of weights") for part in (10, 80, 90)]


def test_small_steps_are_not_told_one_by_one(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a message for each of a thousand tensors, or progress that goes back."""
    with listening(lambda fraction, note: told.append((fraction, note))):
        for done in [*range(1, 1000), 5]:
            tell_bytes(done, 1000)
    assert len(told) <= 100 and told == sorted(told)
    monkeypatch.setattr(progress, "LEAST_PAUSE_S", 60.0)
    told.clear()
    with listening(lambda fraction, note: told.append((fraction, note))):
        for done in range(1, 1000):
            tell_bytes(done, 1000)
    assert len(told) == 1


def test_stages_that_load_side_by_side_do_not_mix(told: Told) -> None:
    """Fault: the progress of one stage is shown for another, or a listener outlives its stage."""
    with listening(lambda fraction, note: told.append((fraction, note))):
        other = threading.Thread(target=tell_bytes, args=(1, 2))
        other.start()
        other.join()
    tell_bytes(1, 2)
    assert told == []
