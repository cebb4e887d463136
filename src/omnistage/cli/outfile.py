"""The files that an answer goes into: what a name asks for, whether it can be written, and the writing.

Knows no model. Every refusal is an InvalidRequestError that names `out`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import typer

from omnistage.core.errors import InvalidRequestError
from omnistage.core.output import OmniRequestOutput
from omnistage.serve import media, pictures

_SOUNDS = {".wav": "wav", ".flac": "flac", ".mp3": "mp3", ".opus": "opus", ".ogg": "opus", ".pcm": "pcm16"}
_PICTURES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
_NAMED = {"audio": "sound", "image": "picture"}


@dataclass(frozen=True, slots=True)
class OutFile:
    """`modality` (audio or image) and `form` follow from the name of `path`."""

    path: Path
    modality: str
    form: str

    @classmethod
    def of(cls, path: Path) -> OutFile:
        """Raises InvalidRequestError for a name that asks for nothing, a missing folder, and what cannot be written."""
        suffix = path.suffix.lower()
        if suffix not in _SOUNDS | _PICTURES:
            raise _refused(path, f"a file name that ends in {', '.join(_SOUNDS | _PICTURES)}")
        if not path.parent.is_dir():
            raise _refused(path, "a file in a folder that exists")
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise _not_writable(path)
        if suffix in _SOUNDS:
            return cls(path, "audio", _SOUNDS[suffix])
        return cls(path, "image", _PICTURES[suffix])

    def save(self, answer: OmniRequestOutput) -> None:
        """Writes what there is; several pictures into files of their own: cat-0.png, cat-1.png."""
        made = [self._sound(answer)] if self.modality == "audio" else self._pictures(answer)
        for index, data in enumerate(made):
            path = self.path if len(made) == 1 else self.path.with_stem(f"{self.path.stem}-{index}")
            try:
                path.write_bytes(data)
            except OSError as error:  # a full disk, or a folder in which nobody can write whatever its permissions say
                raise _not_writable(path, error.strerror) from None
            typer.echo(f"wrote {path}", err=True)

    def _sound(self, answer: OmniRequestOutput) -> bytes:
        payload = answer.multimodal_output
        if "audio" not in payload.tensors:
            raise nothing_for(self.path, "audio")
        rate = payload.metadata.get("sample_rate", media.DEFAULT_RATE)
        return media.encoded(payload.numpy("audio"), rate, self.form)

    def _pictures(self, answer: OmniRequestOutput) -> list[bytes]:
        if not answer.images:
            raise nothing_for(self.path, "image")
        return [pictures.encoded(pixels, pictures.PictureFormat(self.form)) for pixels in answer.images]


def nothing_for(path: Path, modality: str) -> InvalidRequestError:
    """The answer has nothing of what the file is for."""
    return _refused(path, f"no such file, as the answer has no {_NAMED[modality]}")


def _refused(path: Path, accepted: str) -> InvalidRequestError:
    return InvalidRequestError.of("out", str(path), accepted)


def _not_writable(path: Path, why: str | None = None) -> InvalidRequestError:
    return _refused(path, "a file that can be written" + (f" ({why})" if why else ""))
