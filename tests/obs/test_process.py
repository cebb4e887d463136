"""What the system says of this process."""

import mmap
import os
import threading

from omnistage.obs.process import process_figures


def test_figures_follow_what_happens() -> None:
    """Fault: a leak of threads, files or memory that no figure shows."""
    before = process_figures()
    ending = threading.Event()
    thread = threading.Thread(target=ending.wait, name="waiting")
    thread.start()
    descriptor = os.open("/dev/null", os.O_RDONLY)
    held = mmap.mmap(-1, 64 * 2**20)  # pages of its own: a heap may have room left from before
    held[:] = b"x" * len(held)
    during = process_figures()
    os.close(descriptor)
    ending.set()
    thread.join()
    assert during["threads"] == before["threads"] + 1
    assert "waiting" in during["thread_names"]
    assert during["open_files"] == before["open_files"] + 1
    assert during["rss_nbytes"] - before["rss_nbytes"] > len(held) // 2
    assert process_figures()["open_files"] == before["open_files"]
    assert before["pid"] == os.getpid()
