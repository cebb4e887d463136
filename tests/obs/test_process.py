"""What the system says of this process."""

import mmap
import os
import subprocess
import sys
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


def test_large_memory_is_given_back() -> None:
    """Fault: a server keeps what the largest media that passed it have taken."""
    program = (
        "from omnistage.obs.process import *\n"
        "def rss(): return process_figures()['rss_nbytes']\n"
        "assert give_large_memory_back()\n"
        "bytes(24 * 2**20)\n"
        "before = rss()\n"
        "held = [bytes([1]) * 2**20 for _ in range(32)]\n"
        "kept = [bytes([1]) * 2**20, held.pop()]\n"
        "del held\n"
        "assert rss() < before + 8 * 2**20, rss() - before\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 0


def test_free_memory_is_given_back_when_it_is_asked_for() -> None:
    """Fault: in a process whose malloc keeps what is free, who computes once in a while keeps the most he ever took."""
    program = (
        "from omnistage.obs.process import *\n"
        "def rss(): return process_figures()['rss_nbytes']\n"
        "before = rss()\n"
        "held = [bytes([1]) * 2**20 for _ in range(32)]\n"
        "kept = held.pop()\n"
        "del held\n"
        "assert rss() > before + 24 * 2**20, rss() - before\n"
        "assert give_free_memory_back()\n"
        "assert rss() < before + 8 * 2**20, rss() - before\n"
    )
    keeping = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30, env=keeping).returncode == 0
