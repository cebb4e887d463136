"""Weights that are not there or are others: one line each, saying what was looked for and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.checkpoint import WEIGHTS_INDEX, WeightsReader, weight_files
from omnistage.modeling.folder import WEIGHTS
from omnistage.modeling.progress import listening


def expect_broken(*words: object) -> pytest.RaisesExc[BrokenCheckpointError]:
    return pytest.raises(
        BrokenCheckpointError, check=lambda e: all(str(w) in e.message for w in words) and "\n" not in e.message
    )


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    """Fault: a missing shard is noticed in the first request."""
    with expect_broken(tmp_path, WEIGHTS):
        weight_files(tmp_path)
    (tmp_path / WEIGHTS_INDEX).write_text(
        json.dumps({"weight_map": {"x": "part-1.safetensors", "y": "part-1.safetensors"}})
    )
    with expect_broken("part-1.safetensors"):
        weight_files(tmp_path)
    save_file({"x": torch.ones(2)}, tmp_path / "part-1.safetensors")
    assert weight_files(tmp_path) == [tmp_path / "part-1.safetensors"]


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    """Fault: a cut file raises something of the library's own."""
    save_file({"x": torch.ones(100)}, tmp_path / WEIGHTS)
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:-50])
    with expect_broken(tmp_path / WEIGHTS, "safetensors"):
        WeightsReader(tmp_path, torch.float32)


def test_reading_tells_how_much_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a start of minutes that shows 0 %, or bytes of tensors that are joined count twice or not at all."""
    monkeypatch.setattr("omnistage.modeling.progress.LEAST_PAUSE_S", 0.0)
    tensors = {name: torch.ones(1000, 100, dtype=torch.bfloat16) for name in ("x", "y", "z")}
    save_file(tensors, tmp_path / WEIGHTS)
    told: list[float] = []
    with listening(lambda fraction, note: told.append(fraction)):
        reader = WeightsReader(tmp_path, torch.float32)
        reader.read("x", [1000, 100])
        reader.read_joined({"y": [1000, 100], "z": [1000, 100]})
    assert told == pytest.approx([1 / 3, 2 / 3, 0.99], abs=0.01)


def test_tensors_are_checked_converted_and_joined(tmp_path: Path) -> None:
    """Fault: a tensor of another shape is broadcast into place; a name that is absent is left random."""
    save_file({"x": torch.ones(2, 3, dtype=torch.bfloat16), "y": torch.zeros(1, 3)}, tmp_path / WEIGHTS)
    reader = WeightsReader(tmp_path, torch.float32)
    assert reader.read("x", [2, 3]).dtype == torch.float32
    assert reader.read_joined({"x": [2, 3], "y": [1, 3]}).tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]
    assert "x" in reader
    assert "z" not in reader
    with expect_broken(tmp_path, "no tensor z"):
        reader.read("z", [1])
    with expect_broken(tmp_path, "no tensor z"):
        reader.read_any("z")
    with expect_broken("x has shape [2, 3]", "[3, 2]"):
        reader.read_joined({"x": [3, 2]})


def test_a_part_of_a_model_is_read_by_prefix_from_the_files_that_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: every stage opens all shards of a large model, waits for files that it needs nothing of, or shows its progress
    as a share of what others read."""
    monkeypatch.setattr("omnistage.modeling.progress.LEAST_PAUSE_S", 0.0)
    shards = {
        "one": {"talker.a": torch.ones(4, 100), "vocoder.x": torch.full((1, 100), 2.0)},
        "two": {"vocoder.y": torch.full((3, 100), 3.0), "vocoders.x": torch.zeros(1)},
    }
    for name, tensors in shards.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    places = {name: f"{shard}.safetensors" for shard, tensors in shards.items() for name in tensors}
    (tmp_path / WEIGHTS_INDEX).write_text(json.dumps({"weight_map": {**places, "talker.b": "absent.safetensors"}}))
    told: list[float] = []
    with listening(lambda fraction, note: told.append(fraction)):
        reader = WeightsReader(tmp_path, torch.float32, "vocoder.")
        assert reader.read("x", [1, 100]).tolist() == [[2.0] * 100]
        assert reader.read_joined({"x": [1, 100], "y": [3, 100]}).shape == (4, 100)
    assert told == pytest.approx([1 / 4, 1 / 2, 0.99], abs=0.01)
    assert "x" in reader
    assert "a" not in reader
    assert "vocoder.x" not in reader
    with expect_broken(tmp_path, "no tensor vocoder.z"):
        reader.read("z", [1])
    assert weight_files(tmp_path, "vocoders.") == [tmp_path / "two.safetensors"]
    with expect_broken("absent.safetensors"):
        weight_files(tmp_path, "talker.")


def test_parts_of_tensors_and_tensors_of_others(tmp_path: Path) -> None:
    """Fault: an expert gets the weights of the one before it; a module's tensors are looked for under their full names."""
    save_file({"a.x": torch.arange(6.0).view(2, 3), "a.y": torch.ones(1), "b.x": torch.ones(100)}, tmp_path / WEIGHTS)
    reader = WeightsReader(tmp_path, torch.float32, "a.")
    assert reader.read_part("x", [2, 3], 1).tolist() == [3.0, 4.0, 5.0]
    assert reader.read_any("x").shape == (2, 3)
    assert reader.names("") == ["x", "y"]
    assert reader.names("y") == ["y"]
    with expect_broken("a.x has shape [2, 3]"):
        reader.read_part("x", [3, 3], 1)


def test_a_mapped_tensor_stays_as_it_is_stored(tmp_path: Path) -> None:
    """Fault: a table of which few rows are read is converted, and so read whole; another shape is taken."""
    table = torch.arange(6, dtype=torch.bfloat16).view(3, 2)
    save_file({"table": table}, tmp_path / WEIGHTS)
    reader = WeightsReader(tmp_path, torch.float32, prefix="table")
    assert torch.equal(reader.mapped("", [3, 2]), table)
    with expect_broken("[3, 2]", "[2, 3]"):
        reader.mapped("", [2, 3])


def test_what_was_copied_leaves_memory_although_the_file_stays_mapped(tmp_path: Path) -> None:
    """Fault: a worker in which all weights lie twice, because a norm is used where it lies; a neighbour's page that goes along."""
    path = tmp_path / "model.safetensors"
    tensors = {
        "a.weight": torch.randn(1000, 512),
        "b.weight": torch.randn(1000, 512),
        "experts": torch.randn(4, 500, 512),
        "other": torch.randn(700, 700),
        "norm": torch.randn(512),
    }
    save_file(tensors, path)
    reader = WeightsReader(tmp_path, torch.float32)
    norm = reader.read("norm", [512])
    before = resident_nbytes(path)
    for _ in range(2):  # what has gone comes again
        joined = reader.read_joined({"a.weight": [1000, 512], "b.weight": [1000, 512]})
        assert joined.equal(torch.cat([tensors["a.weight"], tensors["b.weight"]]))
        assert all(reader.read_part("experts", [4, 500, 512], at).equal(tensors["experts"][at]) for at in range(4))
        assert reader.read_any("other").equal(tensors["other"])
    assert resident_nbytes(path) - before < 2**20 < sum(tensor.nbytes for tensor in tensors.values()) // 8
    assert norm.equal(tensors["norm"])


def resident_nbytes(path: Path) -> int:
    """Of the mappings of a file, what lies in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and name == "Rss:":
            found += 1024 * int(values[0])
    return found
