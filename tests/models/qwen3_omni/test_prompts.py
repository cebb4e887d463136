"""Which item a token stands for, and what is said when tokens and items do not match."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media, Prompt
from omnistage.models.qwen3_omni.positions import Block
from omnistage.models.qwen3_omni.prompts import expand, named_in, parts_for_template, places, runs, user_turns
from omnistage.models.qwen3_omni.settings import PromptIds

IDS = PromptIds(image=1, audio=2, video=3, vision_start=4, audio_start=5, audio_end=6, im_start=7, user=8)
TEXT = Prompt(text="as it stands")
CHAT = Prompt(messages=({"role": "user", "content": ""},))


def item(kind: str, name: str) -> Media:
    return Media(kind=kind, data=b"", where=name)  # type: ignore[arg-type]


A, B, C = item("image", "a"), item("audio", "b"), item("video", "c")
D, E, F = item("audio", "d"), item("video", "e"), item("image", "f")


def test_items_stand_in_the_order_of_kind_and_token() -> None:
    """Fault: two pictures that change places, or a sound taken for a picture."""
    found = places([0, 3, 1, 0, 2, 1, 2], [A, F, B, D, C], IDS, TEXT, with_sound=False)
    assert [place.media for place in found] == [C, A, B, F, D]
    assert all(place.sound is None for place in found)


def test_sounds_without_tokens_belong_to_videos() -> None:
    """Fault: the sound of a video taken for one that stands alone. Of a text the first sounds are those of videos, of a
    conversation those that no part names."""
    of_text = places([3, 2], [B, D, C], IDS, TEXT, with_sound=True)
    assert [(place.media, place.sound) for place in of_text] == [(C, B), (D, None)]
    of_chat = places([3, 2], [B, D, C], IDS, CHAT, with_sound=True)
    assert [(place.media, place.sound) for place in of_chat] == [(C, D), (B, None)]
    own = places([3, 3], [C, E], IDS, TEXT, with_sound=True)
    assert [(place.media, place.sound) for place in own] == [(C, None), (E, None)]


@pytest.mark.parametrize(
    ("ids", "media", "with_sound", "words"),
    [
        ([1, 1], [A], False, r"prompt: 2 tokens for items of kind image, and 1 such items \(a\)"),
        ([0], [A, F], False, r"0 tokens for items of kind image, and 2 such items \(a, f\)"),
        ([2], [], False, r"1 tokens for items of kind audio, and 0 such items \(none\)"),
        ([3], [C, B], False, "0 tokens for items of kind audio, and 1"),
        ([3, 3], [C, E, B], True, "0 tokens for items of kind audio, and 1"),
    ],
)
def test_tokens_and_items_must_match(ids: list[int], media: list[Media], with_sound: bool, words: str) -> None:
    """Fault: a prompt that names a picture which never came, or one that nobody asked about."""
    with pytest.raises(InvalidRequestError, match=words) as caught:
        places(ids, media, IDS, TEXT, with_sound=with_sound)
    assert caught.value.field == "prompt"


def test_a_conversation_names_items_in_any_order() -> None:
    """Fault: the order of arrival taken for that of the conversation."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image", "media": 2}, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "a text"},
        {"role": "user", "content": [{"type": "image", "media": 0}]},
    ]
    assert named_in(messages, [A, B, F]) == (F, A, B)
    filled = parts_for_template(messages, [A, B, F])
    assert filled[0]["content"] == [{"type": "image", "image": ""}, {"type": "text", "text": "?"}]
    assert filled[1] == messages[1]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "media": 1},
        {"type": "image", "media": -1},
        {"type": "image", "media": 9},
        {"type": "image"},
        {"type": "text"},
        {"type": "smell", "media": 0},
        "a text",
    ],
)
def test_a_part_that_names_nothing_is_refused(part: Any) -> None:
    """Fault: an index error, or a sound in the place of a picture."""
    with pytest.raises(InvalidRequestError, match=r"messages\[1\].content\[0\]: "):
        parts_for_template([{"role": "user", "content": ""}, {"role": "user", "content": [part]}], [A, B])
    with pytest.raises(InvalidRequestError, match=r"messages\[0\].role"):
        parts_for_template([{"content": ""}], [])


def test_tokens_are_repeated_for_every_row() -> None:
    """Fault: rows beside their place, or a video's marks around the wrong rows."""
    items = [Block("image", 0, (1, 1, 2)), Block("audio", 0, sounds=3), Block("video", 0, (2, 1, 1), 2, sounds=3)]
    full = expand([7, 8, 4, 1, 0, 5, 2, 6, 4, 3, 0], items, IDS)
    assert full.ids.tolist() == [7, 8, 4, 1, 1, 0, 5, 2, 2, 2, 6, 4, 5, 3, 2, 2, 3, 2, 6, 0]
    assert [(block.start, block.rows, block.is_marked) for block in full.blocks] == [
        (3, 2, True),
        (7, 3, True),
        (13, 5, True),
    ]
    assert runs(full.is_media) == ((3, 5), (7, 10), (13, 18))


def test_a_row_that_nothing_announces_is_known_as_such() -> None:
    """Fault: a token of media in the middle of a text, given the positions of a picture."""
    assert not expand([0, 1], [Block("image", 0, (1, 1, 1))], IDS).blocks[0].is_marked
    assert not expand([1], [Block("image", 0, (1, 1, 1))], IDS).blocks[0].is_marked


def test_turns_of_users_run_up_to_the_next_turn() -> None:
    """Fault: a turn that ends early, or a mark at the very end that is read beyond."""
    ids = np.array([7, 0, 9, 7, 8, 1, 1, 7, 0, 7, 8, 7], np.int32)
    assert list(user_turns(ids, IDS)) == [(3, 7), (9, 11)]
    assert list(user_turns(np.array([0, 8], np.int32), IDS)) == []
