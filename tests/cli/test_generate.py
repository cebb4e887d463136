"""`omnistage generate` over a runtime without stages."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
from PIL import Image

from omnistage.cli import generate as command
from omnistage.cli.main import main
from omnistage.core.errors import ErrorInfo
from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest
from omnistage.engine.served import ServedModel
from omnistage.runtime.base import ReplicaStatus, RuntimeStatus
from tests.engine.models import DRAWN, EDITED, ILLUSTRATED, SPOKEN, WRITTEN
from tests.fakes_runtime import FakeRuntime

Served = dict[str, Any]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """`runtime` and `model` that the command finds, and the `overrides` that it was given."""
    state: Served = {"runtime": FakeRuntime(), "model": SPOKEN}

    def resolved(model: str, **given: Any) -> None:
        state["overrides"] = given["overrides"]

    monkeypatch.setattr(command, "resolved", resolved)
    monkeypatch.setattr(command, "served_model", lambda _: state["model"])
    monkeypatch.setattr(command, "runtime_of", lambda _: state["runtime"])
    return state


def call(*words: str) -> object:
    """The exit code."""
    try:
        main(["generate", "m", "--prompt", "Hi", *words])
    except SystemExit as ended:
        return ended.code or 0
    return 0


def submitted(served: Served) -> OmniRequest:
    [request] = served["runtime"].submitted
    assert isinstance(request, OmniRequest)
    return request


def test_text_goes_to_stdout(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: the answer is mixed with what is said about it, or parameters do not arrive."""
    assert call("--temperature", "0", "--max-tokens", "5", "--seed", "0", "--stage-0-threads", "2") == 0
    assert capsys.readouterr().out == "Hello world.\n"
    request = submitted(served)
    params: Any = request.stage_params[0]
    assert (params.temperature, params.max_tokens, params.seed, request.wants) == (0.0, 5, 0, ("text",))
    assert request.prompt.messages == ({"role": "user", "content": "Hi"},)
    assert served["overrides"] == {"stage_0_threads": 2}
    assert served["runtime"].closed_with == 0.0


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".ogg"])
def test_speech_goes_to_the_file(
    served: Served, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: a file whose content is not what its name says, or speech that is cut."""
    out = tmp_path / f"answer{suffix}"
    assert call("--out", str(out), "--voice", "echo") == 0
    samples, rate = soundfile.read(out)
    assert (len(samples), rate) == (480, 24000)
    assert submitted(served).wants == ("text", "audio")
    speech: Any = submitted(served).stage_params[1]
    assert speech.voice == "am_michael"
    assert f"wrote {out}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--modalities", "smell"),
            "modalities: 'smell' is not accepted; accepted: a list of one or more of text, audio",
        ),
        (("--modalities", ""), "modalities: [] is not accepted"),
        (("--modalities", "audio"), "out: None is not accepted; accepted: a file for the audio"),
        (("--voice", "bob"), "voice: 'bob' is not accepted; accepted: one of af_heart, am_michael, alloy, echo"),
        (("--temperature", "-1"), "temperature: -1.0 is not accepted; accepted: a number in [0.0, 100.0]"),
        (("--max-tokens", "0"), "max_tokens: 0 is not accepted"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(
    served: Served, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: weights are loaded for a request that is refused, or the text is another than Python's."""
    assert call(*words) == 1
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert served["runtime"].submitted == []


def test_files_are_shown_before_what_is_said(served: Served, tmp_path: Path) -> None:
    """Fault: a flag that is given twice counts once, or files come behind the question about them."""
    served["model"] = replace(SPOKEN, reads=("text", "image", "audio", "video"))
    for name in ("a.png", "b.png", "c.wav", "d.mp4"):
        (tmp_path / name).write_bytes(name.encode())
    files = [("video", "d.mp4"), ("image", "a.png"), ("audio", "c.wav"), ("image", "b.png")]
    assert call(*(word for kind, name in files for word in (f"--{kind}", str(tmp_path / name)))) == 0
    prompt = submitted(served).prompt
    assert prompt.messages is not None
    assert prompt.messages[0]["content"] == [
        {"type": "image", "media": 0},
        {"type": "image", "media": 1},
        {"type": "audio", "media": 2},
        {"type": "video", "media": 3},
        {"type": "text", "text": "Hi"},
    ]
    assert [media.data for media in prompt.media] == [b"a.png", b"b.png", b"c.wav", b"d.mp4"]


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        (("text", "image"), "a file that can be read (No such file or directory)"),
        (("text",), "this model reads text only"),
    ],
)
def test_a_file_that_cannot_be_shown_is_one_line(
    served: Served, reads: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: a traceback, or a model that loads before its file is looked for."""
    served["model"] = replace(SPOKEN, reads=reads)
    assert call("--image", "/nowhere/a.png") != 0
    told = capsys.readouterr().err
    assert said in told and len(told.splitlines()) == 1
    assert served["runtime"].submitted == []


def test_a_failure_is_one_line(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a traceback for a stage's failure."""
    served["runtime"].error = ErrorInfo("stage_failed", "the voice broke", "speaker")
    assert call() == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: the voice broke"


def test_a_prompt_is_read_from_standard_input(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: `-` is what is said to the model, or the end of the line is a part of it."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("Grüße\n\nan alle\n".encode()), "ascii"))
    assert call("--prompt", "-") == 0
    assert submitted(served).prompt.messages == ({"role": "user", "content": "Grüße\n\nan alle"},)


def test_what_is_no_text_on_standard_input_is_one_line(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: a traceback where a picture is piped in."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\x89PNG")))
    assert call("--prompt", "-") == 1
    assert capsys.readouterr().err.startswith("error: prompt: '4 bytes' is not accepted; accepted: a text in UTF-8")
    assert served["runtime"].submitted == []


def test_what_ends_an_answer_begins_a_line(served: Served, tmp_path: Path) -> None:
    """Fault: the error, or the shell after Ctrl+C, goes on in the line of the words that were there already."""
    served["runtime"].error = ErrorInfo("stage_failed", "the voice broke", "speaker")
    log = tmp_path / "log"
    with log.open("a") as file, log.open("a") as errors, redirect_stdout(file), redirect_stderr(errors):
        assert call() == 1
    assert log.read_text(encoding="utf-8").splitlines() == ["Hello", "error: the voice broke"]


def test_stages_that_do_not_start_are_told(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a prompt that waits for stages that will never come."""

    class Loading(FakeRuntime):
        looks = 0

        def status(self) -> RuntimeStatus:
            self.looks += 1
            if self.looks < 4:
                return RuntimeStatus("starting", {"thinker": "starting"}, (ReplicaStatus("thinker", 0, "starting"),))
            down = ReplicaStatus("thinker", 0, "down", "the weights are broken")
            return RuntimeStatus("degraded", {"thinker": "down"}, (down,))

    served["runtime"] = Loading()
    assert call() == 1
    assert "the stages did not start" in capsys.readouterr().err
    assert served["runtime"].submitted == []


def test_a_model_that_only_writes_makes_no_file(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: an empty sound file for an answer without sound."""
    model: ServedModel = WRITTEN
    served["model"] = model
    out = tmp_path / "answer.wav"
    assert call("--out", str(out)) == 1
    assert "no sound" in capsys.readouterr().err
    assert served["runtime"].submitted == []
    assert not out.exists()


@pytest.mark.parametrize("out", ["folder.wav", "/proc/answer.wav"])
def test_a_file_that_cannot_be_written_is_one_line(
    served: Served, tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: a traceback, after the answer was made; a folder is only found out then."""
    (tmp_path / "folder.wav").mkdir()
    assert call("--out", str(tmp_path / out)) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: out: '{tmp_path / out}' is not accepted; accepted: a file that can be written")
    assert bool(served["runtime"].submitted) == out.startswith("/proc")


def test_what_is_said_about_an_answer_stands_below_it(served: Served, tmp_path: Path) -> None:
    """Fault: `2>&1` into a file gives the words on stderr in the line of the answer."""
    log, out = tmp_path / "log", tmp_path / "answer.wav"
    with log.open("a") as file, log.open("a") as errors, redirect_stdout(file), redirect_stderr(errors):
        assert call("--out", str(out)) == 0
    assert log.read_text(encoding="utf-8").splitlines() == ["Hello world.", f"wrote {out}"]


@pytest.mark.parametrize(
    ("name", "form"), [("cat.png", "PNG"), ("cat.JPG", "JPEG"), ("cat.jpeg", "JPEG"), ("cat.webp", "WEBP")]
)
def test_a_picture_goes_to_the_file(
    served: Served, tmp_path: Path, name: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: a file whose content is not what its name says; text is asked for, or a blank line is all of it."""
    served["model"] = ILLUSTRATED
    out = tmp_path / name
    words = (
        "--size",
        "64x32",
        "--steps",
        "5",
        "--guidance-scale",
        "0",
        "--true-cfg-scale",
        "1.5",
        "--negative-prompt",
        "",
    )
    assert call("--out", str(out), *words, "--seed", "0") == 0
    picture = Image.open(out)
    assert (picture.format, picture.size) == (form, (3, 2))
    request = submitted(served)
    assert request.stage_params[1] == DiffusionParams(
        width=64, height=32, num_inference_steps=5, guidance_scale=0.0, true_cfg_scale=1.5, negative_prompt="", seed=0
    )
    told = capsys.readouterr()
    assert (request.wants, told.out, told.err) == (("image",), "", f"wrote {out}\n")


def test_several_pictures_are_several_files(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: the last picture is all that is left, or they are numbered as they ended."""
    served["model"] = DRAWN
    assert call("--out", str(tmp_path / "a.cat.png"), "--n", "3") == 0
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["a.cat-0.png", "a.cat-1.png", "a.cat-2.png"]
    assert [Image.open(file).getextrema()[0] for file in files] == [(0, 0), (1, 1), (2, 2)]
    assert capsys.readouterr().err.splitlines() == [f"wrote {file}" for file in files]


def test_a_picture_is_edited_under_a_mask(served: Served, tmp_path: Path) -> None:
    """Fault: the mask is shown as a picture, or dropped."""
    served["model"] = EDITED
    for name in ("a.png", "mask.png"):
        (tmp_path / name).write_bytes(name.encode())
    files = ("--image", str(tmp_path / "a.png"), "--mask", str(tmp_path / "mask.png"))
    assert call("--out", str(tmp_path / "b.png"), *files) == 0
    media = submitted(served).prompt.media
    assert [(one.kind, one.data) for one in media] == [("image", b"a.png"), ("mask", b"mask.png")]


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        (DRAWN, (), "out: None is not accepted; accepted: a file for the image, such as answer.png"),
        (DRAWN, ("--out", "cat.gif"), "a file name that ends in .wav"),
        (DRAWN, ("--out", "cat.wav"), "no such file, as the answer has no sound"),
        (SPOKEN, ("--out", "cat.png"), "no such file, as the answer has no picture"),
        (ILLUSTRATED, ("--out", "cat.png", "--modalities", "text"), "no such file, as the answer has no picture"),
        (ILLUSTRATED, ("--n", "2"), "n: 2 is not accepted; accepted: nothing where no pictures are made"),
        (DRAWN, ("--out", "cat.png", "--n", "0"), "n: 0 is not accepted; accepted: a number in [1, 10]"),
        (DRAWN, ("--out", "cat.png", "--size", "abc"), "size: 'abc' is not accepted; accepted: WIDTHxHEIGHT"),
        (DRAWN, ("--out", "cat.png", "--size", "100000x64"), "width: 100000 is not accepted"),
        (DRAWN, ("--out", "cat.png", "--steps", "0"), "num_inference_steps: 0 is not accepted"),
        (DRAWN, ("--out", "cat.png", "--image", "a.png"), "this model reads text only"),
    ],
)
def test_what_is_wrong_with_a_picture_is_told_before_anything_starts(
    served: Served, model: ServedModel, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: weights are loaded for a picture that has no file, or that cannot be drawn."""
    served["model"] = model
    assert call(*words) == 1
    told = capsys.readouterr().err
    assert said in told and len(told.splitlines()) == 1
    assert served["runtime"].submitted == []
