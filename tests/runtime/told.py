"""Stands in for the worker: says on stdout what it was told at its start, then what comes over its life line."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from omnistage.connectors.descriptors import receive_descriptor
from omnistage.wire.plan import WorkerPlan

NAMES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "ORT_DISABLE_TELEMETRY",
    "MALLOC_MMAP_THRESHOLD_",
    "OWN",
    "HOME",
)


def say(**told: Any) -> None:
    os.write(1, json.dumps(told).encode())


def main() -> None:
    text = sys.stdin.buffer.read()
    plan = WorkerPlan.decode(text)
    assert plan.arena is not None
    say(
        plan=json.loads(text),
        arena_nbytes=os.fstat(plan.arena).st_size,
        environment={name: os.environ.get(name) for name in NAMES},
        session=os.getsid(0),
        arguments=sys.argv,
        main=__name__,
        descriptors=[int(number) for number in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{number}").exists()],
        modules=list(sys.modules),
        helper=subprocess.Popen(["sleep", "60"]).pid,
    )
    line = socket.socket(fileno=plan.life_line)
    while (received := receive_descriptor(line)) is not None:
        header, descriptor = received
        say(header=header, nbytes=None if descriptor is None else os.fstat(descriptor).st_size)
    sys.exit(2)


if __name__ == "__main__":
    main()
