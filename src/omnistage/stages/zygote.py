"""A process that has imported what workers need and forks them: `python -m omnistage.stages.zygote`, with its plan (wire.zygote)
on standard input.

A child runs the worker's module as `python -m` would, with its own plan on standard input: it finds what a worker that was
started by exec finds, except that its modules are there already. A fork copies one thread only, so nothing here may have
started another when it happens: imports go on in a thread that has ended by then (and is polite to whoever computes), no
stage is loaded, no tensor computed, no device touched, no socket of zmq opened. The number of threads is looked at before
every fork, and one too many is a refusal.

Ends when the server does; its children have life lines of their own. Knows no worker's messages.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import NoReturn

import msgspec

from omnistage.connectors.memory import create_memory
from omnistage.obs.process import live_by_a_life_line
from omnistage.stages.build import modules_of
from omnistage.wire.plan import WorkerPlan
from omnistage.wire.zygote import Ended, Forked, ForkRefused, FromZygote, ZygotePlan, ZygoteReady, hear_order, say

NICENESS = 10
"""Of the imports: those who ask something of the stages go first."""
THREADS_WAIT_S = 1.0
"""A thread that was joined leaves the system's list a moment later."""
_CHUNK_NBYTES = 65536


class ZygoteRunner:
    """See the module. `run` returns when the server is gone."""

    def __init__(self, plan: ZygotePlan, control: socket.socket) -> None:
        self._plan = plan
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, int] = {}
        self._over = False

    def run(self) -> None:
        if not self._import_all():
            return
        gc.collect()
        gc.freeze()  # a collection in a child would touch every object, and with it copy every page
        self._say(ZygoteReady(threads=_threads_at_rest()))
        self._selector.register(self._control, selectors.EVENT_READ, self._take_order)
        while not self._over:
            for key, _ in self._selector.select():
                key.data()

    def _import_all(self) -> bool:
        """False if the server went away meanwhile."""
        done_read, done_write = os.pipe()
        importing = threading.Thread(target=self._import, args=(done_write,))
        importing.start()
        with selectors.DefaultSelector() as selector:
            selector.register(done_read, selectors.EVENT_READ)
            selector.register(self._control, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select()]
        if self._control in ready:
            return False
        importing.join()
        os.close(done_read)
        os.close(done_write)
        return True

    def _import(self, done: int) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        modules = dict.fromkeys(name for stage in self._plan.stages for name in modules_of(stage))
        for name in (self._plan.module, *modules):
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - the worker that needs it says so itself, with its stage's name
                _print(f"{name} was not imported: {type(error).__name__}: {error}")
        os.write(done, b".")

    def _say(self, message: FromZygote, *descriptors: int) -> None:
        try:
            say(self._control, message, descriptors)
        except OSError:
            self._over = True

    # ---- children ----------------------------------------------------------------------------------------------------

    def _take_order(self) -> None:
        descriptors = hear_order(self._control)
        if descriptors is None:
            self._over = True
            return
        threads = _threads_at_rest()
        if threads > 1:
            self._say(ForkRefused(reason=f"{threads} threads run in it"))
        else:
            self._fork(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork(self, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._say(ForkRefused(reason=str(error)))
            return
        if pid == 0:
            self._become_worker(*descriptors)
        pidfd = os.pidfd_open(pid)
        self._children[pid] = pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._reap(pid))
        self._say(Forked(pid=pid), pidfd)

    def _reap(self, pid: int) -> None:
        """It is dead. Until it is reaped its number, which names its group too, is nobody else's."""
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        pidfd = self._children.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._say(Ended(pid=pid, code=code))

    def _become_worker(self, told: int, output: int, life_line: int, arena: int | None = None) -> NoReturn:
        """In the child: what exec would have given it, and then the worker's module."""
        code = 1
        try:
            os.setsid()
            self._selector.close()
            self._control.close()
            for pidfd in self._children.values():
                os.close(pidfd)
            os.dup2(output, 1)
            os.dup2(output, 2)
            plan = WorkerPlan.decode(_read_all(told))
            _put_on_stdin(msgspec.structs.replace(plan, life_line=life_line, arena=arena).encode())
            os.close(told)
            os.close(output)
            code = _run(self._plan.module)
        except BaseException:  # noqa: BLE001 - nothing of the zygote's own may go on in a child
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _run(module: str) -> int:
    """As `python -m module`; the exit code."""
    sys.modules.pop(module, None)  # it is run anew, as __main__; what it imports is there
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _put_on_stdin(data: bytes) -> None:
    told = create_memory(len(data), "a worker's plan")
    os.write(told, data)
    os.lseek(told, 0, os.SEEK_SET)
    os.dup2(told, 0)
    os.close(told)


def _read_all(descriptor: int) -> bytes:
    data = b""
    while chunk := os.read(descriptor, _CHUNK_NBYTES):
        data += chunk
    return data


def _threads_at_rest() -> int:
    """How many threads this process has, those of libraries too."""
    give_up_at = time.monotonic() + THREADS_WAIT_S
    while (threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < give_up_at:
        time.sleep(0.005)
    return threads


def _print(line: str) -> None:
    os.write(2, f"{line}\n".encode())


def main() -> None:
    """The life of a zygote. It ends by `os._exit`: an import that goes on must not keep it."""
    live_by_a_life_line()
    plan = ZygotePlan.decode(_read_all(0))
    os.set_inheritable(plan.control, False)
    code = 1
    try:
        ZygoteRunner(plan, socket.socket(fileno=plan.control)).run()
        code = 0
    except BaseException:  # noqa: BLE001 - said, and the end
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
