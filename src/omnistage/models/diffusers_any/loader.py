"""Loads a folder of diffusers as its model_index.json says, and finds out what its pipeline can be called with.

All that this package cannot work with is refused here, by one line that names the class and what it lacks. Weights are read from
safetensors only; nothing is downloaded, and no code of the folder is run.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import BrokenCheckpointError, UnsupportedByModelError
from omnistage.modeling.diffusers_library import diffusers_class
from omnistage.modeling.folder import read_json, read_json_if_any
from omnistage.modeling.library_module import in_short, read_module
from omnistage.modeling.progress import loading_of
from omnistage.modeling.tensors import dtype_of
from omnistage.models.diffusers_any.asks import ARGUMENTS, CallShape
from omnistage.models.diffusers_any.model import WholePipeline

INDEX = "model_index.json"
_TOKENIZER = "tokenizer.json"
_NEEDED = ("prompt", "generator", "num_inference_steps", "output_type", "callback_on_step_end")
_PICTURES = ("images", "image")
"""Fields of a pipeline's output that hold pictures."""
_GIVEN_PICTURES = ("image", "images", "control_image", "mask_image", "input_images", "image_embeddings")
"""Arguments of pipelines that draw from pictures."""
_DRAWING = ("scheduler", "transformer", "unet", "vae")
"""Parts that no pipeline draws without; others may be null, even where the class has no default for them."""
_LEAST = 8
"""Both sides of a picture are multiples of this in nearly every pipeline's own check, whatever its autoencoder has."""
_STEPS = 50
"""Where neither a request nor the pipeline says how many."""
_COUNTS_ALL_PLACES = ("AuraFlowTransformer2DModel",)
"""Networks whose `pos_embed_max_size` is of the whole table. Of others it is of a side."""


def load(config: DiffusionStageConfig) -> WholePipeline:
    """Raises ConfigError where diffusers is missing or has no such class, UnsupportedByModelError for a pipeline that cannot be
    served, BrokenCheckpointError for a folder that is not whole."""
    _hush("transformers")  # before a pipeline is looked up, which imports much of it
    folder = Path(config.model_path)
    index = read_json(folder, INDEX)
    name = str(index.get("_class_name"))
    kind = diffusers_class(name)
    takes = inspect.signature(kind.__call__).parameters
    made, lacks = _made(kind), list(_lacks(kind, takes))
    if lacks or made is None:
        lacks += ["makes no pictures"] if made is None else []
        raise UnsupportedByModelError(f"{name} of diffusers is not served here: it {', and '.join(lacks)}")
    missing = sorted(_missing(folder, index, kind))
    if missing:
        raise BrokenCheckpointError(f"{folder}: {name} needs what is not there: {', '.join(missing)}")
    pipeline = _loaded(kind, folder, _parts(index), config.dtype)
    fixed: dict[str, Any] = {"output_type": "np"}
    if "use_resolution_binning" in takes:
        fixed["use_resolution_binning"] = False  # a picture is drawn at the size that its bounds were checked for
    return WholePipeline(pipeline, _shape(name, pipeline, takes), fixed, made)


def _lacks(kind: Any, takes: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    """Why a class cannot be served."""
    if not issubclass(kind, diffusers_class("DiffusionPipeline")):
        yield "is no pipeline"
        return
    yield from (f"takes no {name}" for name in _NEEDED if name not in takes)
    given = [name for name in _GIVEN_PICTURES if name in takes]
    if given and not _draws_without(kind, takes):
        yield f"draws from pictures ({given[0]})"


def _made(kind: Any) -> str | None:
    """The field of the pipeline's output that holds pictures. No signature tells it; the class's module has the output's class."""
    members = vars(sys.modules[kind.__module__]).items()
    outputs = [one for name, one in members if name.endswith("Output") and dataclasses.is_dataclass(one)]
    fields = {field.name for one in outputs for field in dataclasses.fields(one)}
    return next((name for name in _PICTURES if name in fields), None)


def _draws_without(kind: Any, takes: Mapping[str, inspect.Parameter]) -> bool:
    """Whether pictures are only one more thing that it can be given: then the library lists it among those that draw out of a text,
    and it has no network that is steered by one."""
    chooser = diffusers_class("AutoPipelineForText2Image")
    listed = sys.modules[chooser.__module__].AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()
    steered = "control_image" in takes or "controlnet" in inspect.signature(kind.__init__).parameters
    return kind in listed and not steered


def _missing(folder: Path, index: Mapping[str, Any], kind: Any) -> Iterator[str]:
    """Parts that the index names and the folder has not, and those that the class needs and the index does not name, or leaves
    out."""
    parts = _parts(index)
    for name, part in parts.items():
        if any(part) and not any((folder / name).glob("*")):
            yield f"{name} (a folder of that name)"
    for name in _DRAWING:
        if name in parts and not any(parts[name]):
            yield f"{name} (null in {INDEX})"
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name != "self" and parameter.default is parameter.empty and name not in {*parts, *kind._optional_components}:
            yield f"{name} (in {INDEX})"


def _parts(index: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What stands in the index as [library, class]; [null, null] is a part that the model does without. Other lists are none."""
    return {name: part for name, part in index.items() if _is_part(part) and not name.startswith("_")}


def _is_part(value: Any) -> bool:
    match value:
        case [str() | None, str() | None]:
            return True
    return False


def _loaded(kind: Any, folder: Path, parts: Mapping[str, list[Any]], dtype: str) -> Any:
    for name in parts:
        read_json_if_any(folder / name, _TOKENIZER)  # the library does not say which file it cannot read
    given: dict[str, Any] = {name: None for name, part in parts.items() if not any(part)}
    _hush("diffusers")
    given |= _read(folder, dict(_modules(parts)), dtype)
    read = {"dtype": dtype_of(dtype), "local_files_only": True, "use_safetensors": True}
    try:
        pipeline = kind.from_pretrained(folder, **read, **given)
    except Exception as error:  # the library raises anything for a folder that it cannot load
        raise BrokenCheckpointError(f"{folder} cannot be loaded as {kind.__name__}: {in_short(error)}") from error
    for name, part in pipeline.components.items():
        if isinstance(part, PreTrainedTokenizerBase):
            _need_vocabulary(part, folder / name)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _hush(library: str) -> None:
    """Which would draw bars, that are no lines of a log, write down what it cuts of prompts, and advise packages that nothing here
    needs."""
    told = importlib.import_module(f"{library}.utils.logging")
    told.disable_progress_bar()
    told.set_verbosity_error()


def _read(folder: Path, kinds: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The parts with weights, by name; tells how much of them is there."""
    sizes = {name: sum(path.stat().st_size for path in (folder / name).glob("*.safetensors")) for name in kinds}
    loading, read = loading_of(sum(sizes.values())), {}
    for name, kind in kinds.items():
        read[name] = read_module(kind, folder / name, dtype)
        loading.took(sizes[name])
    return read


def _modules(parts: Mapping[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    """The parts that have weights, with their classes: those that libraries would fill up by lot. Others, and classes that are not
    there, are left to the pipeline."""
    libraries = {"diffusers": sys.modules["diffusers"], "transformers": transformers}
    for name, part in parts.items():
        own = getattr(libraries.get(str(part[0])), str(part[-1]), None)
        if isinstance(own, type) and issubclass(own, torch.nn.Module):
            yield name, own


def _need_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Without its files a tokenizer of the library knows no words, and says nothing of it."""
    apart = sorted({str(name) for name in tokenizer.vocab_files_names.values()} - {_TOKENIZER})
    if not (folder / _TOKENIZER).is_file() and not all((folder / name).is_file() for name in apart):
        raise BrokenCheckpointError(
            f"{folder} has no {_TOKENIZER}, and not {' and '.join(apart)}; looked for its words"
        )


def _shape(name: str, pipeline: Any, takes: Mapping[str, inspect.Parameter]) -> CallShape:
    steps = takes["num_inference_steps"].default
    scale = int(getattr(pipeline, "vae_scale_factor", _LEAST))
    return CallShape(
        name=name,
        takes=frozenset(ARGUMENTS) & takes.keys(),
        steps=steps if isinstance(steps, int) else _STEPS,
        height=_side("height", pipeline, takes, scale),
        width=_side("width", pipeline, takes, scale),
        multiple=math.lcm(_LEAST, _multiple(pipeline, scale)),
        most=_most(pipeline, scale),
    )


def _side(name: str, pipeline: Any, takes: Mapping[str, inspect.Parameter], scale: int) -> int | None:
    """Where a request gives none: what the signature says, or the latents that the model was trained for, in pixels."""
    if name in takes and isinstance(takes[name].default, int):
        return int(takes[name].default)
    latents = getattr(pipeline, "default_sample_size", None) or _setting(pipeline, "sample_size")
    return latents * scale if isinstance(latents, int) else None


def _multiple(pipeline: Any, scale: int) -> int:
    """Pixels on a side of what the model works in: of a latent, or of a patch of those. Pipelines that pack latents two by two say
    so to what makes pictures of them."""
    packed = getattr(_config(pipeline, "image_processor"), "vae_scale_factor", scale)
    if packed > scale:
        return int(packed)
    patch = _setting(pipeline, "patch_size")
    return scale * patch if isinstance(patch, int) else scale


def _most(pipeline: Any, scale: int) -> int | None:
    """Pixels on a side, of a network that has a table of places. Beyond its end some networks fail in the middle of a call, and
    one takes places from its other end."""
    places = _setting(pipeline, "pos_embed_max_size")
    if not isinstance(places, int):
        return None
    if type(pipeline.transformer).__name__ in _COUNTS_ALL_PLACES:
        places = math.isqrt(places)
    return places * _multiple(pipeline, scale)


def _setting(pipeline: Any, name: str) -> Any:
    """Of the network that takes the noise away; None where it has no such setting."""
    found = (getattr(_config(pipeline, network), name, None) for network in ("transformer", "unet"))
    return next((one for one in found if one is not None), None)


def _config(pipeline: Any, part: str) -> Any:
    return getattr(getattr(pipeline, part, None), "config", None)
