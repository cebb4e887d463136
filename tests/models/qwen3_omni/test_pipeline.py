"""Which pipeline a Qwen3-Omni folder is, and what it offers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from omnistage.core.errors import ConfigError
from omnistage.engine.compose import resolved, served_model
from omnistage.models.qwen3_omni.pipeline import PIPELINE, THINKER_PIPELINE, has_talker, voices
from tests.tiny.qwen3_omni import OmniShape, omni_settings, train_tokenizer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder without weights, which nobody reads before a stage starts."""
    tokenizer = train_tokenizer()
    settings = omni_settings(tokenizer, OmniShape())
    settings["architectures"] = ["Qwen3OmniMoeForConditionalGeneration"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def rewrite(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_is_three_stages_that_read_everything(folder: Path) -> None:
    """Fault: a checkpoint that is taken for another kind, or that cannot be shown a picture."""
    served = served_model(resolved(str(folder)))
    assert [stage.name for stage in served.stages] == ["thinker", "talker", "code2wav"]
    assert served.modalities == ("text", "audio")
    assert served.reads == ("text", "image", "audio", "video")
    assert served.voices == ("aiden", "chelsie", "ethan")


def test_a_checkpoint_without_a_talker_writes_only(folder: Path) -> None:
    """Fault: two stages that have no weights to load."""
    rewrite(folder, enable_audio_output=False)
    served = served_model(resolved(str(folder)))
    assert [stage.name for stage in served.stages] == ["thinker"]
    assert (served.modalities, served.voices) == (("text",), ())


def test_the_thinker_alone_can_be_asked_for(folder: Path) -> None:
    """Fault: memory for stages that nobody asks."""
    served = served_model(resolved(str(folder), overrides={"pipeline": "qwen3_omni_moe_thinker"}))
    assert [stage.name for stage in served.stages] == ["thinker"]


def test_voices_are_those_of_the_checkpoint(folder: Path) -> None:
    """Fault: the family's voices offered for a checkpoint that has others."""
    assert voices(json.loads((folder / "config.json").read_text())) == ("aiden", "chelsie", "ethan")
    assert voices({"talker_config": {"speaker_id": {"b": 2, "a": 1}}}) == ("a", "b")
    assert voices({}) == ()


def test_a_name_for_a_voice_that_the_checkpoint_lacks_is_an_error(folder: Path) -> None:
    """Fault: a request that fails in the talker for what the operator mistyped."""
    deploy = folder / "deploy.yaml"
    deploy.write_text("voices: {alloy: nobody}")
    with pytest.raises(ConfigError, match=r"voices\.alloy.*'nobody'.*aiden, chelsie, ethan"):
        resolved(str(folder), deploy_config=str(deploy))


def test_which_of_the_two_a_configuration_asks_for() -> None:
    assert (
        has_talker({}) and has_talker({"enable_audio_output": True}) and not has_talker({"enable_audio_output": False})
    )
    assert PIPELINE.hf_architectures == THINKER_PIPELINE.hf_architectures


def test_no_stage_needs_transformers(tiny: Path) -> None:
    """Fault: 0.1 GB and seconds of every start for modules of which nothing is used."""
    program = """if True:
        import sys
        from omnistage import Omni, SamplingParams
        from tests.models.qwen3_omni.cases import CASES
        greedy = SamplingParams(temperature=0.0, max_tokens=4)
        with Omni(sys.argv[1], inline=True) as omni:
            answer = omni.generate([CASES["image and audio"]], [greedy, greedy, None], use_tqdm=False)[0]
        samples = answer.multimodal_output.numpy("audio")
        print(answer.error, len(answer.token_ids), len(samples) > 0, "transformers" in sys.modules)
    """
    command = [sys.executable, "-c", program, str(tiny)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == "None 4 True False\n", done.stderr
