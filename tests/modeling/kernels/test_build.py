"""Compiling once: where the library lies, who compiles, and that nothing depends on it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omnistage.modeling.kernels import build
from omnistage.modeling.kernels.chosen import chosen_ops, renewed
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing has been compiled yet, and what is found out is forgotten after the test."""
    monkeypatch.setenv("OMNISTAGE_CACHE", str(tmp_path))
    build.library_path.cache_clear()
    yield tmp_path
    build.library_path.cache_clear()


def quick_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A compiler that does `body`; $out is the file to be made."""
    program = folder / "quick-c++"
    program.write_text(f'#!/bin/sh\nfor out; do :; done\necho ran >> "{folder}/runs"\n{body}\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))


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


def test_several_that_begin_at_once_compile_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: every worker of a server compiles for itself, all at the same time."""
    quick_compiler(empty_cache, monkeypatch, 'sleep 0.2; echo > "$out"')
    threads = [build.build_soon() for _ in range(4)]
    for thread in threads:
        thread.join(10)
    assert (empty_cache / "runs").read_text() == "ran\n"


@pytest.mark.parametrize("body", ["echo 'no such flag' >&2; exit 1", "kill -9 $$"])
def test_a_compiler_that_fails_is_told_and_torch_computes(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    """Fault: a broken compiler ends the stage, or leaves half a library behind."""
    quick_compiler(empty_cache, monkeypatch, body)
    assert build.build() is None
    assert "the kernels were not compiled" in caplog.text
    assert build.built() is None
    assert type(renewed(TorchOps(), CPU)) is TorchOps
    assert [path.suffix for path in (empty_cache / "kernels").iterdir()] == [".lock"]


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


def test_another_compiler_or_other_sources_make_another_library(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a library of other sources is loaded, whose functions take other arguments."""
    quick_compiler(empty_cache, monkeypatch, "exit 0")
    first = build.library_path()
    copied = empty_cache / "source"
    copied.mkdir()
    for source in build.SOURCES.iterdir():
        (copied / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "SOURCES", copied)
    build.library_path.cache_clear()
    assert build.library_path() == first
    with (copied / "rows.cpp").open("a") as file:
        file.write("// changed\n")
    build.library_path.cache_clear()
    second = build.library_path()
    quick_compiler(empty_cache, monkeypatch, "exit 0 # another")
    build.library_path.cache_clear()
    assert len({first, second, build.library_path()}) == 3


def test_sources_compile_for_a_processor_with_narrow_vectors(empty_cache: Path, kernels: KernelOps) -> None:
    """Fault: a width that only this machine has."""
    program = build.compiler()
    assert program is not None
    wide = ["-mavx512f"] if "x86" in " ".join(build._processor()) else []
    for flags in ([], wide):
        sources = [str(source) for source in sorted(build.SOURCES.glob("*.cpp"))]
        command = [
            str(program),
            "-std=c++17",
            "-fopenmp",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            *flags,
            *sources,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
