"""Whole prompts, compared with what transformers' processor and its models make of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media, OmniRequest, Prompt
from omnistage.modeling.protocols import ProcessedPrompt, RepeatableProcessor
from omnistage.models.qwen3_omni.handoff import ASSISTANT_ROWS, TalkerPrompt
from omnistage.models.qwen3_omni.processor import OmniProcessor, load_processor
from omnistage.stages.prepare.coding import decode, encode
from tests.models.qwen3_omni.files import encoded_picture, encoded_sound, encoded_video, item
from tests.references.qwen3_omni_cases import CASES, PROMPTS, film, media_of, noise, picture, prompt_of
from tests.tiny.engines import stage_config
from tests.tiny.qwen3_omni import write_qwen3_omni

IMAGE, AUDIO, VIDEO = (
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|audio_start|><|audio_pad|><|audio_end|>",
    ("<|vision_start|><|video_pad|><|vision_end|>"),
)
ASSISTANT = "<|im_start|>assistant\n"
MAX_TOKENS = 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_omni(tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def processor(folder: Path) -> OmniProcessor:
    return load_processor(stage_config(folder, max_model_len=MAX_TOKENS))


@pytest.fixture(scope="module")
def prompts(processor: OmniProcessor) -> Callable[[str], ProcessedPrompt]:
    """What a case becomes, made once."""
    return cache(lambda name: processor(request(prompt_of(CASES[name]))))


def request(prompt: Prompt, *wants: str) -> OmniRequest:
    return OmniRequest(request_id="r", prompt=prompt, wants=wants or ("text", "audio"), stage_params={})


def user(text: str, *media: Media, **options: Any) -> Prompt:
    return Prompt(text=f"<|im_start|>user\n{text}<|im_end|>\n{ASSISTANT}", media=media, mm_processor_kwargs=options)


def positions(made: ProcessedPrompt) -> tuple[Any, int]:
    """As the runtime takes them where the prompt says nothing."""
    length = len(made.token_ids)
    plain = np.tile(np.arange(length), (3, 1))
    return (plain if made.positions is None else made.positions), made.next_position or length


@pytest.mark.parametrize("name", CASES)
def test_prompts_are_those_of_transformers(prompts: Callable[[str], ProcessedPrompt], name: str) -> None:
    """Fault: an id, a position of the thinker, or one of the talker, that the model was not trained with."""
    wanted = {key.split(".")[1]: value for key, value in load_file(PROMPTS).items() if key.split(".")[0] == name}
    made = prompts(name)
    assert list(made.token_ids) == wanted["ids"].tolist()
    ours, after = positions(made)
    assert np.array_equal(ours, wanted["positions"]) and after == wanted["next"][0]
    talker = TalkerPrompt.of(made.handoff)
    assert np.array_equal(talker.user_ids, wanted["talker_ids"])
    assert np.array_equal(talker.positions, wanted["talker_positions"])
    assert talker.next_position == wanted["talker_next"][0]


@pytest.mark.parametrize("name", CASES)
def test_rows_of_media_fill_their_places(
    processor: OmniProcessor, prompts: Callable[[str], ProcessedPrompt], name: str
) -> None:
    """Fault: spans that overlap, leave a place empty or hold text; rows for the talker in another order than it counts them."""
    made = prompts(name)
    filled = np.zeros(len(made.token_ids), int)
    for media in made.media:
        assert media.tokens == sum(end - start for start, end in media.spans)
        for start, end in media.spans:
            filled[start:end] += 1
            assert len({made.token_ids[at] for at in range(start, end)}) == 1
    ids = processor._settings.ids
    assert np.array_equal(filled, np.isin(made.token_ids, [ids.image, ids.audio, ids.video]))
    assert made.outputs_at is not None
    sent = [at for start, end in made.outputs_at for at in range(start, end)]
    talker = TalkerPrompt.of(made.handoff)
    assert [made.token_ids[at] for at in sent] == talker.user_ids[talker.media_rows].tolist()
    assert talker.positions.shape == (3, len(talker.user_ids) + ASSISTANT_ROWS)


def test_everything_survives_the_way_out_of_the_helper(processor: OmniProcessor) -> None:
    """Fault: a value that only this process can read."""
    made = processor(request(prompt_of(CASES["spoken_twice"])))
    got = decode(encode(made))
    assert isinstance(got, ProcessedPrompt) and made.positions is not None and got.positions is not None
    assert got.token_ids == made.token_ids and np.array_equal(got.positions, made.positions)
    assert [(media.key, media.spans, media.tokens) for media in got.media] == [
        (media.key, media.spans, media.tokens) for media in made.media
    ]
    assert np.array_equal(got.media[0].data["pixel_values"], made.media[0].data["pixel_values"])
    assert got.media[0].data["grid_thw"] == made.media[0].data["grid_thw"]
    assert np.array_equal(TalkerPrompt.of(got.handoff).positions, TalkerPrompt.of(made.handoff).positions)
    assert got.outputs_at == made.outputs_at and got.next_position == made.next_position


def test_a_conversation_a_text_and_ids_are_the_same_prompt(processor: OmniProcessor) -> None:
    """Fault: three ways to ask, and three answers."""
    media = media_of("image", picture(40, 40))
    parts = [{"type": "image", "media": 0}, {"type": "text", "text": "Hello"}]
    chat = processor(request(Prompt(messages=({"role": "user", "content": parts},), media=(media,))))
    text = user(f"{IMAGE}Hello", media)
    assert text.text is not None
    ids = tuple(processor.tokenizer.encode(text.text, add_special_tokens=False).ids)
    for prompt in (text, Prompt(token_ids=ids, media=(media,))):
        made = processor(request(prompt))
        assert made.token_ids == chat.token_ids and made.media[0].key == chat.media[0].key


def test_files_are_read_where_samples_and_pixels_are(processor: OmniProcessor) -> None:
    """Fault: a file that takes another way than its content would."""
    media = (
        item("image", encoded_picture(picture(40, 40), "PNG")),
        item("audio", encoded_sound(noise(16_000), 16_000, "WAV", "FLOAT")),
    )
    raw = (media_of("image", picture(40, 40)), media_of("audio", noise(16_000)))
    made, same = (processor(request(user(IMAGE + AUDIO, *given))) for given in (media, raw))
    assert made.token_ids == same.token_ids
    for ours, theirs in zip(made.media, same.media, strict=True):
        name = "pixel_values" if ours.kind == "image" else "input_features"
        np.testing.assert_allclose(ours.data[name], theirs.data[name], atol=1e-5)


def test_a_video_is_read_with_its_own_sound(processor: OmniProcessor) -> None:
    """Fault: pictures that move in silence, or a silent video that is refused."""
    frames = list(film(20, 64, 64))
    spoken = item("video", encoded_video(frames, rate=10, sound=noise(88_200)))
    silent = item("video", encoded_video(frames, rate=10))
    made = processor(request(user(VIDEO, spoken, use_audio_in_video=True)))
    assert [media.kind for media in made.media] == ["video", "audio"]
    assert made.media[0].data["grid_thw"][0] == 2 and 26 <= made.media[1].tokens <= 27
    assert made.outputs_at == ((made.media[0].spans[0][0], made.media[1].spans[-1][1]),)
    plain = processor(request(user(VIDEO, spoken)))
    assert [media.kind for media in plain.media] == ["video"] and plain.media[0].key == made.media[0].key
    assert [m.kind for m in processor(request(user(VIDEO, silent, use_audio_in_video=True))).media] == ["video"]
    both = processor(request(user(VIDEO + "and" + VIDEO, silent, spoken, use_audio_in_video=True)))
    assert [media.kind for media in both.media] == ["video", "video", "audio"]


def test_forty_pictures_are_read(processor: OmniProcessor) -> None:
    """Fault: a limit that nobody stated."""
    media = [media_of("image", picture(33 + at, 40, at)) for at in range(40)]
    made = processor(request(user("".join([IMAGE] * 40), *media)))
    assert len(made.media) == 40 and len({one.key for one in made.media}) == 40
    assert made.positions is not None and made.positions.shape == (3, len(made.token_ids))


def test_speech_needs_a_turn_that_it_answers(processor: OmniProcessor) -> None:
    """Fault: a talker with nothing to speak to, which is the server's fault then; or an input kept from a request that did not want
    speech, given to one that does."""
    for prompt, field in (
        (Prompt(messages=({"role": "system", "content": "Be brief."},)), "messages"),
        (Prompt(text="once upon a time"), "prompt"),
    ):
        with pytest.raises(InvalidRequestError, match=f"{field}: 'no user turn' is not accepted") as caught:
            processor(request(prompt))
        assert caught.value.field == field
        made = processor(request(prompt, "text"))
        assert made.outputs_at == () and len(TalkerPrompt.of(made.handoff).user_ids) == 0
        assert not processor.depends_on_prompt_alone(prompt)
    assert isinstance(processor, RepeatableProcessor)
    assert processor.depends_on_prompt_alone(user("Hello"))
    assert processor.depends_on_prompt_alone(prompt_of(CASES["image"]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"use_audio": True}, r"mm_processor_kwargs.use_audio: unknown field.*use_audio_in_video"),
        (
            {"use_audio_in_video": 1},
            "mm_processor_kwargs.use_audio_in_video: 1 is not accepted; accepted: true or false",
        ),
        ({"fps": 0}, r"mm_processor_kwargs.fps: 0 is not accepted; accepted: a number > 0"),
        ({"fps": "fast"}, "mm_processor_kwargs.fps: 'fast'"),
        ({"fps": 4}, r"mm_processor_kwargs.fps: 4.*26 divided by a whole number"),
        ({"fps": 27}, r"mm_processor_kwargs.fps: 27"),
    ],
)
def test_options_are_checked_by_name(processor: OmniProcessor, options: dict[str, Any], words: str) -> None:
    """Fault: a misspelt option that is silently without effect; a pace for which there are no positions."""
    with pytest.raises(InvalidRequestError, match=words):
        processor(request(user(VIDEO, media_of("video", film(4, 32, 32)), **options)))


def test_a_third_of_26_may_be_written_as_it_prints(processor: OmniProcessor) -> None:
    """Fault: a pace that is whole in positions, refused because decimals end."""
    made = processor(request(user(VIDEO, media_of("video", film(4, 32, 32)), fps=8.6666667)))
    assert made.positions is not None
    start = made.media[0].spans[0][0]
    assert sorted(set((made.positions[0, start : start + made.media[0].tokens] - start).tolist())) == [0, 3]


def test_what_does_not_fit_is_refused_before_it_is_read(folder: Path) -> None:
    """Fault: memory for a prompt that can never be served; a prompt of many items, each of which would fit."""
    small = load_processor(stage_config(folder, max_model_len=40))
    image = media_of("image", picture(128, 128))
    with pytest.raises(
        InvalidRequestError, match=r"image: '16 tokens' is not accepted; accepted: at most \d+, what the prompt has"
    ):
        small(request(user(IMAGE * 2, image, image)))
    assert len(small(request(user(IMAGE, image))).token_ids) < 40


def test_an_item_without_a_name_has_one_in_messages(processor: OmniProcessor) -> None:
    """Fault: ": 3 bytes is not accepted"."""
    with pytest.raises(InvalidRequestError, match=r"^media\[1\]: "):
        processor(request(user(IMAGE * 2, media_of("image", picture(8, 8)), Media(kind="image", data=b"abc"))))


def test_a_text_that_spells_a_token_of_media_is_refused(processor: OmniProcessor) -> None:
    """Fault: a caller's words that move pictures to other places."""
    parts = [{"type": "text", "text": "What is <|image_pad|>?"}]
    with pytest.raises(InvalidRequestError, match="messages: 1 tokens for items of kind image, and 0 such items"):
        processor(request(Prompt(messages=({"role": "user", "content": parts},))))


def test_a_prompt_of_text_costs_no_positions(processor: OmniProcessor) -> None:
    """Fault: prompts without pictures that lose the fast way of plain positions."""
    made = processor(request(user("Hello")))
    assert made.media == () and made.positions is None and made.next_position is None and made.outputs_at == ()
    assert processor(request(user(AUDIO, media_of("audio", noise(800))))).positions is None


def test_a_model_without_a_talker_hands_nothing_over(folder: Path, processor: OmniProcessor) -> None:
    """Fault: rows captured that nobody reads."""
    silent = OmniProcessor(processor._text, processor._reader, replace(processor._settings, speaks=False), MAX_TOKENS)
    made = silent(request(prompt_of(CASES["image"]), "text"))
    assert made.handoff == {} and made.outputs_at == ()


def test_the_processor_needs_neither_torch_nor_transformers() -> None:
    """Fault: a helper process that takes seconds to start, and half a gigabyte."""
    check = (
        "import sys, omnistage.models.qwen3_omni.processor;"
        "print([name for name in ('torch', 'transformers', 'torchvision', 'scipy') if name in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert made.stdout.strip() == "[]"
