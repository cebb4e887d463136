"""Videos become the patches that transformers makes of them, within one grey level; frames are chosen as it chooses them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.models.qwen3_omni.limits import MediaLimits
from omnistage.models.qwen3_omni.settings import VideoSampling
from omnistage.models.qwen3_omni.video import VideoReader, sample
from tests.models.qwen3_omni.files import cuts, encoded_video, is_refused, item, scrambled
from tests.references.qwen3_omni_cases import FILMS, MEDIA, PIXELS, SAMPLED, TOTALS, film, media_of, picture

SAMPLING = VideoSampling(fps=2.0, least=4, most=768)
READER = VideoReader(PIXELS, SAMPLING, MediaLimits())
ROOM = 100_000


def greys(patches: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """[patches, 3, values], from normalised colours back to 0 to 255."""
    mean, std = np.array(PIXELS.mean)[:, None], np.array(PIXELS.std)[:, None]
    levels: npt.NDArray[np.float64] = (patches.reshape(len(patches), 3, -1).astype(float) * std + mean) * 255
    return levels


@pytest.mark.parametrize("name", [*FILMS, "sampled"])
def test_patches_are_those_of_transformers(name: str) -> None:
    """Fault: other frames, sizes or order; resizing in another order, which differs by up to 20 levels. Where transformers' own
    resizing rounds otherwise, it is by one level, and in less than one value of a hundred."""
    wanted = load_file(MEDIA)
    pixels, rate = (SAMPLED[0], SAMPLED[1]) if name == "sampled" else (FILMS[name], None)
    made = READER.read(media_of("video", pixels, rate), None, ROOM)
    assert made.grid == tuple(wanted[f"film.{name}.grid"])
    ours = greys(made.patches)
    np.testing.assert_allclose(ours, ours.round(), atol=1e-3)
    difference = np.abs(ours.round() - wanted[f"film.{name}.greys"])
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


@pytest.mark.parametrize(("at", "total", "rate"), [(at, *facts) for at, facts in enumerate(TOTALS)])
def test_frames_are_chosen_as_transformers_chooses_them(at: int, total: int, rate: float) -> None:
    """Fault: a frame beside the one that is meant, or a number of them that does not fill the last patch."""
    wanted = load_file(MEDIA)[f"sampling.{at}"].tolist()
    assert list(sample(total, rate, 2.0, SAMPLING, 2)) == [index for index in wanted if index < total]


@pytest.mark.parametrize("total", [1, 2, 3, 5, 42, 44, 65, 201])
def test_every_chosen_frame_is_there(total: int) -> None:
    """Fault: a step that rounds to one frame beyond the last, or none at all of a video of one frame."""
    for fps in (0.1, 1, 2, 13, 26):
        chosen = list(sample(total, 10.0, fps, SAMPLING, 2))
        assert chosen == sorted(set(chosen)) and chosen[0] >= 0 and chosen[-1] < total
        assert len(chosen) % 2 == 0 or len(chosen) == total == 1


@pytest.mark.parametrize(
    ("fps", "rate", "seconds"), [(None, None, 2.0), (2.0, None, 1.0), (None, 10.0, 1.0), (1.0, 10.0, 2.0)]
)
def test_time_passes_at_the_pace_at_which_frames_are_read(
    fps: float | None, rate: float | None, seconds: float
) -> None:
    """Fault: sound that runs away from its pictures."""
    assert READER.read(media_of("video", film(30, 32, 32), rate), fps, ROOM).grid_seconds == seconds


def plain(count: int, height: int = 64, width: int = 64) -> list[npt.NDArray[np.uint8]]:
    """Frames of one grey each, which says their number: 8 levels apart."""
    return [np.full((height, width, 3), 8 * at, np.uint8) for at in range(count)]


@pytest.mark.parametrize(
    ("form", "codec"),
    [("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mjpeg"), ("mp4", "libx264"), ("webm", "libvpx-vp9")],
)
def test_a_file_gives_the_frames_of_its_times(form: str, codec: str) -> None:
    """Fault: frames in the order of decoding, or of other times. 31 frames at 10 a second are 3.1 s: six frames, the first at 0."""
    data = encoded_video(plain(31), rate=10, form=form, codec=codec)
    made = READER.read(item("video", data), None, ROOM)
    assert made.grid == (3, 4, 4)
    seen = greys(made.patches).reshape(3, 16, 3, 2, -1).mean(axis=(1, 2, 4)).reshape(-1)  # [times, frames of a patch]
    wanted = [8 * index for index in sample(31, 10.0, 2.0, SAMPLING, 2)]
    np.testing.assert_allclose(seen, wanted, atol=4)


@pytest.mark.parametrize("turned", [0, 90, 180, -90])
def test_a_film_of_a_phone_stands_upright(turned: int) -> None:
    """Fault: films that the model sees lying on their side, or squeezed into the sides of the frame as it is stored."""
    upright = film(4, 96, 40)
    upright[:, :48] //= 4  # its upper half is dark
    stored = np.rot90(upright, -turned // 90, axes=(1, 2))
    made = READER.read(item("video", encoded_video(stored, rate=2, turned=turned)), None, ROOM)
    plain = READER.read(item("video", encoded_video(upright, rate=2)), None, ROOM)
    assert made.grid == plain.grid == (2, 6, 2)
    assert np.abs(greys(made.patches) - greys(plain.patches)).mean() < 8


def test_packets_that_make_no_frame_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a video with hidden frames, refused or read too slowly because fewer come out than went in."""
    data = item("video", encoded_video(plain(20), rate=10))
    true = READER.read(data, None, ROOM)
    look = VideoReader._look
    monkeypatch.setattr(VideoReader, "_look", lambda self, media: replace(look(self, media), frames=29))
    made = READER.read(data, None, ROOM)
    assert made.grid == true.grid and np.array_equal(made.patches, true.patches)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_odd_numbers_of_frames_are_filled_up(count: int) -> None:
    """Fault: a last patch that is half empty."""
    raw = READER.read(media_of("video", film(count, 40, 40)), None, ROOM)
    assert raw.grid[0] == -(-count // 2) and len(raw.patches) == np.prod(raw.grid)
    made = READER.read(item("video", encoded_video(plain(count), rate=1)), None, ROOM)
    assert made.grid[0] == max(1, count // 2)


@pytest.mark.parametrize(
    ("media", "words"),
    [
        (item("video", b""), "'0 bytes' is not accepted"),
        (item("video", b"nothing that moves"), "accepted: a whole file: MP4, Matroska, AVI"),
        (item("video", encoded_video(plain(9))[:-50]), r"bytes of a file of \d+"),
        (item("video", encoded_video(plain(9))[:400]), "bytes of a file of|Invalid data"),
        (media_of("video", picture(8, 8)), r"uint8 \[frames, height, width, 3\]"),
        (media_of("video", film(2, 1, 201)), "a longer side of at most 200 times"),
        (media_of("video", film(2, 8, 8), 1e6), r"1e\+06 frames per second"),
    ],
)
def test_what_is_no_video_is_named(media: Media, words: str) -> None:
    """Fault: an error of a library, without the field it came from."""
    with pytest.raises(InvalidRequestError, match=words) as caught:
        READER.read(media, None, ROOM)
    assert caught.value.field == media.where


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (MediaLimits(video_nbytes=100), "accepted: 1 to 100 bytes"),
        (MediaLimits(video_pixels=4000), "frames of 64x64 pixels.*1 to 4000 pixels"),
        (MediaLimits(video_frames=19), "20 frames.*1 to 19 frames"),
        (MediaLimits(video_seconds=1.5), r"2\.0 s.*at most 1\.5 s"),
        (MediaLimits(video_work=80_000), r"20 frames of 64x64 pixels.*at most 80000 pixels in all of them"),
    ],
)
def test_limits_are_asked_before_decoding(limits: MediaLimits, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a film of hours that is decoded, and then found to be too much."""

    def never(*_: Any) -> Any:
        raise AssertionError("decoded")

    monkeypatch.setattr(VideoReader, "_decode", never)
    data = encoded_video(plain(20), rate=10)
    with pytest.raises(InvalidRequestError, match=words):
        VideoReader(PIXELS, SAMPLING, limits).read(item("video", data), None, ROOM)
    with pytest.raises(InvalidRequestError, match="'8 tokens' is not accepted; accepted: at most 7"):
        READER.read(item("video", data), None, 7)


def test_a_frame_that_is_larger_than_its_header_says_is_refused() -> None:
    """Fault: a header that is within the limits, and frames that are not. The decoder has the limit itself."""
    data = encoded_video(plain(4, 64, 64))
    facts = READER._look(item("video", data))
    tight = VideoReader(PIXELS, SAMPLING, MediaLimits(video_pixels=2000))
    with pytest.raises(InvalidRequestError, match="Invalid argument"):
        tight._decode(item("video", data), [0], (facts.height, facts.width))


@pytest.mark.parametrize(
    ("form", "codec"), [("mp4", "mpeg4"), ("mp4", "libx264"), ("matroska", "mpeg4"), ("avi", "mjpeg")]
)
def test_files_that_were_cut_or_scrambled_are_read_or_refused(
    form: str, codec: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fault: an error of another kind, which would count as the server's, or a library that writes to the log."""
    whole = encoded_video(list(film(20, 48, 64)), form=form, codec=codec)
    capfd.readouterr()
    read = partial(READER.read, fps=None, room=ROOM)
    assert all(is_refused(read, item("video", data)) for data in cuts(whole))
    for seed in range(15):
        is_refused(read, item("video", scrambled(whole, seed)))
    assert capfd.readouterr().err == ""
