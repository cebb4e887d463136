"""Rotary positions by hand; test_processor.py compares whole prompts with transformers."""

from __future__ import annotations

from omnistage.models.qwen3_omni.positions import Block, heard_by_talker, rotary_positions


def test_text_counts_on() -> None:
    """Fault: a prompt without media that does not stand where a plain decoder has it."""
    made, after = rotary_positions(4, [])
    assert made.tolist() == [[0, 1, 2, 3]] * 3 and after == 4
    assert rotary_positions(0, [])[1] == 0


def test_a_picture_has_height_and_width() -> None:
    """Fault: axes that are mixed up, or text that goes on behind the count of rows instead of the largest position."""
    made, after = rotary_positions(9, [Block("image", 2, (1, 2, 3))])
    assert made.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]
    assert after == 6


def test_times_of_a_video_are_a_step_apart() -> None:
    """Fault: frames as close as words are."""
    made, after = rotary_positions(4, [Block("video", 1, (2, 1, 1), 13)])
    assert made.tolist() == [[0, 1, 14, 15], [0, 1, 1, 15], [0, 1, 1, 15]] and after == 16


def test_sound_stands_among_the_frames_by_time() -> None:
    """Fault: sound before its picture at equal times, or all of it behind the pictures. The text goes on behind the last rows of
    one kind, not behind the largest position."""
    block = Block("video", 0, (2, 1, 5), 2, sounds=3)
    assert block.is_sound().tolist() == [False] * 5 + [True] * 2 + [False] * 5 + [True]
    made, after = rotary_positions(14, [block])
    assert made[0].tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 3]
    assert made[2].tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4, 2, 3]
    assert after == 5  # the largest was 4, of a picture's width


def test_rows_without_their_mark_are_text() -> None:
    """Fault: positions of a picture for rows that the model was not told to see as one."""
    block = Block("image", 1, (1, 2, 2), is_marked=False)
    assert rotary_positions(6, [block])[0].tolist() == [[0, 1, 2, 3, 4, 5]] * 3


def test_the_talker_takes_a_spoken_video_for_text_unless_pictures_follow() -> None:
    """Fault: positions that the talker was not trained with."""
    image, sound = Block("image", 0, (1, 1, 1)), Block("audio", 0, sounds=2)
    silent, spoken = Block("video", 0, (1, 1, 1)), Block("video", 0, (1, 1, 1), 1, sounds=2)
    assert heard_by_talker([spoken]) == []
    assert heard_by_talker([sound, spoken, sound]) == [sound, sound]
    assert heard_by_talker([image, spoken]) == [image]
    assert heard_by_talker([spoken, image]) == [spoken, image]
    assert heard_by_talker([spoken, spoken, silent]) == [spoken]
