"""Which operations a process takes, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omnistage.modeling.kernels import build
from omnistage.modeling.kernels.chosen import chosen_ops, renewed
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps
from tests.modeling.kernels.compilers import quick_compiler

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing has been compiled yet, and what is found out is forgotten after the test."""
    monkeypatch.setenv("OMNISTAGE_CACHE", str(tmp_path))
    monkeypatch.delenv("OMNISTAGE_KERNELS", raising=False)
    build.library_path.cache_clear()
    yield tmp_path
    build.library_path.cache_clear()


def test_a_compiled_library_is_used(empty_cache: Path, kernels: KernelOps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the library is compiled again at every start, or never taken."""
    quick_compiler(empty_cache, monkeypatch, f'cp "{kernels.path}" "$out"')
    assert isinstance(chosen_ops(torch.device("meta")), TorchOps)
    before = build.built()
    assert before is None
    made = build.build()
    assert made is not None
    assert build.built() == made
    assert isinstance(chosen_ops(CPU), KernelOps)
    written = made.stat().st_mtime_ns
    assert build.build() == made
    assert made.stat().st_mtime_ns == written


def test_the_first_start_waits_for_nothing(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: loading a model waits until a compiler has ended."""
    quick_compiler(empty_cache, monkeypatch, 'sleep 0.3; echo > "$out"')
    ops = chosen_ops(CPU)
    assert type(ops) is TorchOps
    assert renewed(ops, CPU) is ops  # it still runs
    for thread in threading.enumerate():
        if thread.name == "omnistage-kernels":
            thread.join(10)
    assert build.built() is not None


def test_a_library_that_cannot_be_loaded_is_told(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: a damaged file in the cache ends the stage."""
    quick_compiler(empty_cache, monkeypatch, 'echo nonsense > "$out"')
    build.build()
    assert type(chosen_ops(CPU)) is TorchOps
    assert "cannot be loaded" in caplog.text


def test_without_a_compiler_or_a_wish_torch_computes(
    empty_cache: Path, kernels: KernelOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a machine without a compiler cannot start; the switch does nothing."""
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert build.compiler() is None
        assert type(chosen_ops(CPU)) is TorchOps
        assert build.build() is None
    build.library_path.cache_clear()
    quick_compiler(empty_cache, monkeypatch, f'cp "{kernels.path}" "$out"')
    assert build.build() is not None
    monkeypatch.setenv("OMNISTAGE_KERNELS", "0")
    assert type(chosen_ops(CPU)) is TorchOps
