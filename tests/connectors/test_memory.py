"""Shared memory without a name, whatever the kernel offers."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from omnistage.connectors import memory
from omnistage.connectors.memory import SHARED_FOLDER, create_memory, seal
from omnistage.core.errors import ConnectorError


def no_memory_files(*_: object) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


def kind_of(descriptor: int) -> str:
    """Where the memory is, as the kernel shows it."""
    shown = os.readlink(f"/proc/self/fd/{descriptor}")
    return "file" if shown.startswith(str(SHARED_FOLDER)) else "memfd"


@pytest.mark.parametrize("missing", ["nothing", "the call", "the function", "asked for"])
def test_memory_has_no_name_and_is_all_there(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a kernel without memory files cannot run the engine; kill -9 leaves names behind; pages that are not there."""
    match missing:
        case "the call":
            monkeypatch.setattr(os, "memfd_create", no_memory_files)
        case "the function":
            monkeypatch.delattr(os, "memfd_create")
        case "asked for":
            monkeypatch.setenv("OMNISTAGE_NAMED_MEMORY", "1")
    before = set(os.listdir(SHARED_FOLDER))
    descriptor = create_memory(2**20, "an arena")
    assert set(os.listdir(SHARED_FOLDER)) == before
    assert kind_of(descriptor) == ("memfd" if missing == "nothing" else "file")
    status = os.fstat(descriptor)
    assert (status.st_size, status.st_blocks * 512) == (2**20, 2**20)
    assert not os.get_inheritable(descriptor)
    mapping = mmap.mmap(descriptor, 2**20)
    seal(descriptor)
    mapping[:4] = b"word"
    assert mmap.mmap(descriptor, 2**20, prot=mmap.PROT_READ)[:4] == b"word"
    os.close(descriptor)


def test_a_full_shared_folder_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a bus error in mid-request, or "No space left" without saying where and how much was asked for."""

    def full(descriptor: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("OMNISTAGE_NAMED_MEMORY", "1")
    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConnectorError) as caught:
        create_memory(2**20, "an arena")
    message = "an arena of 1048576 bytes cannot be allocated in /dev/shm: No space left on device"
    assert caught.value.message == message
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_shared_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fault: a traceback at the first start in a container without /dev/shm."""
    monkeypatch.setenv("OMNISTAGE_NAMED_MEMORY", "1")
    monkeypatch.setattr(memory, "SHARED_FOLDER", tmp_path / "none")
    with pytest.raises(ConnectorError, match=r"cannot be allocated: .*No such file or directory.*none"):
        create_memory(2**20, "an arena")


def test_more_than_there_is_is_refused_before_it_is_taken() -> None:
    """Fault: the kernel kills some process instead."""
    with pytest.raises(ConnectorError, match=r"a segment of 1152921504606846976 bytes cannot be allocated: \d+ bytes"):
        create_memory(2**60, "a segment")
