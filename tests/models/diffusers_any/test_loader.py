"""Folders that cannot be served are refused when they are loaded, by what they lack."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from omnistage.core.errors import BrokenCheckpointError, ConfigError, OmniError, UnsupportedByModelError
from omnistage.modeling import progress
from omnistage.modeling.diffusers_library import diffusers_class
from omnistage.models.diffusers_any import loader
from omnistage.models.diffusers_any.asks import ARGUMENTS, CallShape
from omnistage.models.diffusers_any.loader import INDEX, _shape, load
from tests.models.diffusers_any.conftest import Tiny, stage_config


def test_what_a_pipeline_takes_is_found_out(tiny: Tiny) -> None:
    """Fault: sizes that the model cannot work in, or a default that the library would not have."""
    name = type(tiny.pipeline).__name__
    steps, most = {"StableDiffusionPipeline": (50, None), "StableDiffusion3Pipeline": (28, 64)}[name]
    takes = frozenset(ARGUMENTS) - {"true_cfg_scale"}
    assert tiny.model._shape == CallShape(name, takes, steps, 32, 32, 8, most)


def test_loading_is_told_as_it_is_of_every_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fault: minutes without a word of how far the weights are; bars and advice of the libraries between the lines of the log."""
    for library in ("diffusers", "transformers"):
        said = importlib.import_module(f"{library}.utils.logging")
        said.enable_progress_bar()
        said.set_verbosity_warning()
    monkeypatch.setattr(progress, "LEAST_PAUSE_S", 0.0)
    told: list[float] = []
    loud: list[str] = []

    def looked_up(name: str) -> Any:
        """As the loader does it, which may import modules that have something to say."""
        if logging.getLogger("transformers").getEffectiveLevel() < logging.ERROR:
            loud.append(name)
        return diffusers_class(name)

    monkeypatch.setattr(loader, "diffusers_class", looked_up)
    with progress.listening(lambda fraction, note: told.append(fraction)):
        load(stage_config(folder))
    assert len(told) > 1 and told[-1] == progress.MOST
    assert (capfd.readouterr().err, loud) == ("", [])


@pytest.mark.parametrize(
    ("pipeline", "multiple", "side"),
    [
        ({"vae_scale_factor": 8, "unet": {"sample_size": 64}}, 8, 512),
        ({"vae_scale_factor": 8, "transformer": {"sample_size": 128, "patch_size": 2}}, 16, 1024),
        ({"vae_scale_factor": 32, "transformer": {"sample_size": 32, "patch_size": 1}}, 32, 1024),
        ({"vae_scale_factor": 8, "image_processor": {"vae_scale_factor": 16}, "default_sample_size": 128}, 16, 1024),
        ({"vae_scale_factor": 2, "unet": {"sample_size": (8, 16)}}, 8, None),
        ({}, 8, None),
    ],
)
def test_sizes_are_those_of_the_parts(pipeline: dict[str, Any], multiple: int, side: int | None) -> None:
    """Fault: a size that the autoencoder, the patches or packed latents cannot have; a default that nobody trained for."""
    parts = {name: _part(value) if isinstance(value, dict) else value for name, value in pipeline.items()}
    takes = inspect.signature(lambda num_inference_steps=20, height=None, width=768: None).parameters
    shape = _shape("APipeline", SimpleNamespace(**parts), takes)
    assert (shape.multiple, shape.height, shape.width, shape.steps) == (multiple, side, 768, 20)


@pytest.mark.parametrize(
    ("network", "places", "most"),
    [("SD3Transformer2DModel", 192, 3072), ("AuraFlowTransformer2DModel", 9216, 1536), ("ADiT", None, None)],
)
def test_the_largest_side_is_what_a_table_of_places_has(network: str, places: int | None, most: int | None) -> None:
    """Fault: a size that fails in the middle of a call, or is drawn with places from the other end of the table."""
    part = type(network, (), {"config": SimpleNamespace(patch_size=2, pos_embed_max_size=places)})()
    takes = inspect.signature(lambda num_inference_steps=20: None).parameters
    assert _shape("APipeline", SimpleNamespace(vae_scale_factor=8, transformer=part), takes).most == most


def _part(settings: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(config=SimpleNamespace(**settings))


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("NoSuchPipeline", ConfigError, "has no class 'NoSuchPipeline'"),
        ("UNet2DConditionModel", UnsupportedByModelError, "it is no pipeline"),
        ("DDPMPipeline", UnsupportedByModelError, "it takes no prompt, and takes no callback_on_step_end"),
        ("PixArtSigmaPipeline", UnsupportedByModelError, "it takes no callback_on_step_end"),
        ("LTXPipeline", UnsupportedByModelError, "it makes no pictures"),
        ("StableDiffusionImg2ImgPipeline", UnsupportedByModelError, "it draws from pictures (image)"),
        ("StableDiffusionControlNetPipeline", UnsupportedByModelError, "it draws from pictures (image)"),
        ("FluxControlPipeline", UnsupportedByModelError, "it draws from pictures (control_image)"),
    ],
)
def test_a_class_that_cannot_be_served(tmp_path: Path, name: str, kind: type[OmniError], says: str) -> None:
    """Fault: it loads for minutes, and fails its first request."""
    (tmp_path / INDEX).write_text(json.dumps({"_class_name": name}))
    with pytest.raises(kind) as raised:
        load(stage_config(tmp_path))
    assert says in raised.value.message and name in raised.value.message


def test_pictures_that_may_be_given_do_not_have_to_be(tmp_path: Path) -> None:
    """Fault: a pipeline that draws out of a text alone is refused because it can do more."""
    (tmp_path / INDEX).write_text(json.dumps({"_class_name": "FluxKontextPipeline"}))
    with pytest.raises(BrokenCheckpointError, match="FluxKontextPipeline needs what is not there"):
        load(stage_config(tmp_path))


def without_parts(folder: Path) -> None:
    shutil.rmtree(folder / "vae")
    index = json.loads((folder / INDEX).read_text())
    del index["unet"]
    (folder / INDEX).write_text(json.dumps(index))


def with_pickles(folder: Path) -> None:
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))


def without_a_tensor(folder: Path) -> None:
    weights = folder / "text_encoder" / "model.safetensors"
    tensors = load_file(weights)
    del tensors["final_layer_norm.bias"]
    save_file(tensors, weights, {"format": "pt"})


def with_cut_weights(folder: Path) -> None:
    weights = folder / "text_encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def without_a_network(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**index, "unet": [None, None]}))


def with_strange_parts(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**index, "vae": ["diffusers"], "unet": [1, 2], "layers": [9, 18, 27]}))


def with_layers_without_end(folder: Path) -> None:
    config = folder / "unet" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "layers_per_block": 10**9}))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (with_strange_parts, ["needs what is not there: unet (in model_index.json), vae (in model_index.json)"]),
        (with_layers_without_end, ["unet/config.json: layers_per_block is 1000000000; accepted: at most "]),
        (without_a_tensor, ["text_encoder: the weights have no tensor final_layer_norm.bias"]),
        (with_cut_weights, ["text_encoder/model.safetensors cannot be read as safetensors"]),
        (without_a_network, ["needs what is not there: unet (null in model_index.json)"]),
        (lambda folder: (folder / "unet" / "config.json").unlink(), ["unet has no config.json"]),
        (lambda folder: (folder / "tokenizer" / "tokenizer.json").unlink(), ["tokenizer has no tokenizer.json"]),
        (lambda folder: (folder / "tokenizer" / "tokenizer.json").write_text("{"), ["tokenizer.json cannot be read"]),
        (without_parts, ["needs what is not there: unet (in model_index.json), vae (a folder of that name)"]),
        (with_pickles, ["unet cannot be read", "diffusion_pytorch_model.safetensors"]),
    ],
)
def test_a_folder_that_is_not_whole(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], None], says: list[str]
) -> None:
    """Fault: one missing part is named and not the next; weights are read from pickles, which may hold any code; what is missing is
    made up by lot, and drawn with; a message that does not say which of many files is meant."""
    spoilt = shutil.copytree(folder, tmp_path / "spoilt")
    spoil(spoilt)
    with pytest.raises(BrokenCheckpointError) as raised:
        load(stage_config(spoilt))
    assert all(words in raised.value.message for words in says) and "\n" not in raised.value.message
