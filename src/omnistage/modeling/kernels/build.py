"""Compiles the kernels, once per machine: a shared library without torch in it, cached by sources, compiler and processor.

Never required and never waited for: `built` gives the library if it is there, `build` makes it (ten to twenty seconds at low
priority), `build_soon` does so in the background. Knows nothing of what the kernels compute.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path

from omnistage.config.env import cache_dir, cxx

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).with_name("source")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno")
_TIMEOUT_S = 900.0
"""Some 20 s on an idle machine. At low priority a busy one takes many times as long."""


def compiler() -> Path | None:
    """The C++ compiler that is found first: the one named by CXX, else c++, g++, clang++ of the PATH."""
    named = cxx()
    for name in (named,) if named else ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found is not None:
            return Path(found).resolve()
    return None


def built() -> Path | None:
    """The library for this machine, if it has been compiled."""
    path = library_path()
    return path if path is not None and path.is_file() else None


@cache
def library_path() -> Path | None:
    """Where the library of these sources, this compiler and this processor lies; None without a compiler."""
    program = compiler()
    if program is None:
        return None
    state = program.stat()
    words = [str(program), str(state.st_size), str(state.st_mtime_ns), *_flags(), *_processor()]
    digest = hashlib.sha256("\n".join(words).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return cache_dir() / "kernels" / f"kernels-{digest.hexdigest()[:20]}.so"


def build() -> Path | None:
    """The library, compiled now unless it is there; None where that is impossible, which is logged with the reason. Several
    processes may call it at once: one compiles, the others wait for it."""
    path = library_path()
    if path is None or path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                _compile(path)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or error
        logger.warning("the kernels were not compiled, torch computes instead: %s", " ".join(str(output).split())[:300])
        return None
    return path


def build_soon() -> threading.Thread:
    """Compiles in a thread of its own; nothing waits for it."""
    thread = threading.Thread(target=build, name="omnistage-kernels", daemon=True)
    thread.start()
    return thread


def _compile(path: Path) -> None:
    """Into a file beside it that is renamed when it is whole: a reader never sees half a library."""
    sources = [str(source) for source in sorted(SOURCES.glob("*.cpp"))]
    polite = [found, "-n", "15"] if (found := shutil.which("nice")) else []
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        _run([*polite, str(compiler()), *_flags(), *sources, "-o", str(made)])
        os.replace(made, path)


def _run(command: list[str]) -> None:
    """With the programs that a compiler starts in its turn, which do not end with it. Raises subprocess.SubprocessError."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, errors = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=errors)


def _flags() -> tuple[str, ...]:
    tuned = "-mcpu=native" if platform.machine() in {"aarch64", "arm64"} else "-march=native"
    return (*_FLAGS, tuned)


def _processor() -> list[str]:
    """What `native` depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = platform.processor()
    wanted = ("flags", "Features", "model name", "cpu family", "model")
    lines = {line for line in text.splitlines() if line.split(":")[0].strip() in wanted}
    return [platform.machine(), *sorted(lines)]
