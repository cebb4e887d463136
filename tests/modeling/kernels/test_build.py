"""Compiling once: where the library lies, who compiles, and that nothing depends on it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnistage.modeling.kernels import build
from omnistage.modeling.kernels.native import KernelOps
from tests.modeling.kernels.compilers import quick_compiler


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing has been compiled yet, and what is found out is forgotten after the test."""
    monkeypatch.setenv("OMNISTAGE_CACHE", str(tmp_path))
    build.library_path.cache_clear()
    yield tmp_path
    build.library_path.cache_clear()


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
    assert [path.suffix for path in (empty_cache / "kernels").iterdir()] == [".lock"]


def test_a_compiler_that_does_not_end_is_ended_with_what_it_has_started(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the program that does the work goes on for nobody when the one that was started is killed."""
    quick_compiler(empty_cache, monkeypatch, f'sleep 60 & echo $! > "{empty_cache}/child"; wait')
    monkeypatch.setattr(build, "_TIMEOUT_S", 0.5)
    assert build.build() is None
    state = Path(f"/proc/{(empty_cache / 'child').read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


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
        assert subprocess.run(command, check=False, capture_output=True, timeout=60).stderr == b""
