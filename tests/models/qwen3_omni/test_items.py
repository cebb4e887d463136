"""Items one by one: what they take of a prompt, what names them, and which sound a video is read with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.modeling.folder import Section
from omnistage.models.qwen3_omni.items import ItemReader, MediaOptions
from omnistage.models.qwen3_omni.limits import MediaLimits
from omnistage.models.qwen3_omni.prompts import Place
from omnistage.models.qwen3_omni.settings import media_settings, prompt_settings
from tests.models.qwen3_omni.files import encoded_video, item
from tests.models.qwen3_omni.test_settings import folder, settings
from tests.references.qwen3_omni_cases import film, media_of, noise, picture

ROOM = 10_000
WITH_SOUND = MediaOptions(use_audio_in_video=True)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> ItemReader:
    prompt = prompt_settings(Section(settings(), "config.json"), lambda _: None)
    where: Path = folder(tmp_path_factory.mktemp("items"))
    return ItemReader(prompt, media_settings(where, prompt), MediaLimits())


def test_options_have_names_and_types() -> None:
    """Fault: a misspelt option that is silently without effect."""
    assert MediaOptions.of({}) == MediaOptions()
    assert MediaOptions.of({"fps": 1, "use_audio_in_video": True}) == MediaOptions(True, 1)
    for given in (
        {"fsp": 1},
        {"fps": True},
        {"fps": float("inf")},
        {"fps": float("nan")},
        {"use_audio_in_video": None},
    ):
        with pytest.raises(InvalidRequestError, match=r"^mm_processor_kwargs\."):
            MediaOptions.of(given)


def test_an_item_takes_the_rows_that_it_is_made_of(reader: ItemReader) -> None:
    """Fault: a prompt with another number of places than the encoders make rows."""
    image = reader.read(Place(media_of("image", picture(64, 96))), MediaOptions(), ROOM)
    assert (image.block.kind, image.block.grid, image.tokens) == ("image", (1, 2, 3), 6)
    assert image.inputs[0].data["grid_thw"] == [1, 4, 6] and len(image.inputs[0].data["pixel_values"]) == 24
    sound = reader.read(Place(media_of("audio", noise(16_000))), MediaOptions(), ROOM)
    assert (sound.block.grid, sound.block.sounds, sound.tokens) == (None, 13, 13)
    video = reader.read(Place(media_of("video", film(4, 64, 64))), MediaOptions(), ROOM)
    assert (video.block.grid, video.block.step, video.tokens) == ((2, 12, 12), 26, 288)


def test_the_sound_of_a_video_is_the_callers_or_its_own(reader: ItemReader) -> None:
    """Fault: a track that drowns what the caller gave; marks that nobody counts."""
    clip = item("video", encoded_video(film(10, 64, 64), rate=10, sound=noise(44_100)))
    own = reader.read(Place(clip), WITH_SOUND, ROOM)
    given = reader.read(Place(clip, media_of("audio", noise(32_000))), WITH_SOUND, ROOM)
    assert [one.kind for one in own.inputs] == [one.kind for one in given.inputs] == ["video", "audio"]
    assert (own.block.sounds, given.block.sounds) == (14, 26)
    assert own.inputs[0].key == given.inputs[0].key and own.inputs[1].key != given.inputs[1].key
    assert own.tokens == own.block.rows + 2
    silent = reader.read(Place(media_of("video", film(2, 64, 64))), WITH_SOUND, ROOM)
    assert silent.block.sounds == 0 and silent.tokens == silent.block.rows


def test_the_sound_must_fit_behind_the_pictures(reader: ItemReader) -> None:
    """Fault: room that is given twice."""
    place = Place(media_of("video", film(4, 64, 64)), media_of("audio", noise(16_000)))
    assert reader.read(place, WITH_SOUND, 288 + 13).block.rows == 301
    with pytest.raises(InvalidRequestError, match="'13 tokens' is not accepted; accepted: at most 12"):
        reader.read(place, WITH_SOUND, 288 + 12)


def test_keys_are_those_of_content_and_of_how_it_is_read(reader: ItemReader) -> None:
    """Fault: rows of one picture given to another, or the same picture encoded for every request."""

    def key(media: Media, **options: Any) -> str:
        return reader.read(Place(media), MediaOptions.of(options), ROOM).inputs[0].key

    one = picture(40, 40)
    elsewhere = Media(kind="image", data=one.tobytes(), array=media_of("image", one).array, where="elsewhere")
    assert key(media_of("image", one)) == key(elsewhere)
    others = [one, picture(40, 40, 1), one.reshape(20, 80, 3)]
    assert len({key(media_of("image", other)) for other in others}) == 3
    clip = film(8, 32, 32)
    timed = media_of("video", clip, 4.0)
    assert len({key(timed), key(timed, fps=1), key(media_of("video", clip)), key(media_of("image", clip[0]))}) == 4
