"""Prepared inputs by content.

Faults pinned: equal prompts under different keys, different ones under one; bytes that grow without a bound; what is used goes
first.
"""

from omnistage.core.request import Media, Prompt
from omnistage.core.spec import TensorSpec
from omnistage.stages.prepare.cache import PreparedCache, content_key


def test_equal_prompts_have_one_key_and_no_others_have_it() -> None:
    """Fault: a prompt gets another's answer, for they differ where nobody looked."""
    said: tuple[dict, ...] = ({"role": "user", "content": "one"},)
    prompts = [
        Prompt(text="one"),
        Prompt(text="one "),
        Prompt(messages=said),
        Prompt(messages=said * 2),
        Prompt(messages=said, additional_information={"chat_template_kwargs": {"deep": True}}),
        Prompt(token_ids=(1, 2)),
        Prompt(token_ids=(1, 2, 3)),
    ]
    assert len({content_key(prompt) for prompt in prompts}) == len(prompts)
    assert content_key(Prompt(messages=({"role": "user", "content": "one"},))) == content_key(prompts[2])


def test_media_and_how_they_are_read_are_part_of_the_key() -> None:
    """Fault: another picture, or one cut elsewhere, is taken for the one that was prepared; equal ones are prepared twice."""
    picture, sound = Media(kind="image", data=b"ab"), Media(kind="audio", data=b"ab")
    square = Media(kind="image", data=b"abcd", array=TensorSpec("uint8", (2, 2)))
    media = [
        (),
        (picture,),
        (sound,),
        (Media(kind="image", data=b"ba"),),
        (picture, sound),
        (sound, picture),
        (Media(kind="image", data=b"a"), Media(kind="image", data=b"b")),
        (square,),
        (Media(kind="image", data=b"abcd", array=TensorSpec("uint8", (1, 4))),),
        (Media(kind="image", data=b"abcd"),),
        (Media(kind="audio", data=b"ab", rate=16000.0),),
    ]
    prompts = [Prompt(text="one", media=each) for each in media]
    prompts.append(Prompt(text="one", media=(picture,), mm_processor_kwargs={"use_audio_in_video": True}))
    assert len({content_key(prompt) for prompt in prompts}) == len(prompts)
    named = Media(kind="image", data=b"ab", where="messages[0].content[0]")
    assert content_key(Prompt(text="one", media=(named,))) == content_key(prompts[1])


def test_bytes_are_bounded_and_the_least_recently_used_go_first() -> None:
    """Fault: every prompt that ever came is kept, or the one that everybody uses is dropped."""
    cache = PreparedCache(limit_nbytes=3 * 1000)
    cache.put(b"a", b"x" * 700)
    cache.put(b"b", b"x" * 700)
    cache.put(b"a", b"y" * 700)
    assert cache.get(b"b") is not None
    assert cache.get(b"a") == b"y" * 700
    cache.put(b"c", b"x" * 700)
    cache.put(b"d", b"x" * 700)
    assert cache.get(b"b") is None
    assert [cache.get(key) is not None for key in (b"a", b"c", b"d")] == [True] * 3
    assert cache.nbytes <= 3000
    assert cache.hits == 5


def test_what_is_too_large_is_not_kept() -> None:
    """Fault: one huge value, or its bytes, stays in the count for ever."""
    cache = PreparedCache(limit_nbytes=1000)
    cache.put(b"a", b"x" * 2000)
    assert (cache.get(b"a"), cache.nbytes, len(cache)) == (None, 0, 0)
