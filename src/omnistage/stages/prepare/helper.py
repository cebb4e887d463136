"""A process that prepares inputs: `python -m omnistage.stages.prepare.helper DESCRIPTOR PARENT`.

Loads its stage's processor and nothing else (no model; no torch, unless the processor needs it), then answers one request after
another over the socket DESCRIPTOR. Ends at end-of-file there, and with its parent, the worker, however that dies. Signals of a
terminal or a process group are ignored: the worker decides. What the processor raises is the answer to that request. How much
memory and time a request may take is bounded (prepare.bounds).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

import msgspec

from omnistage.config.env import log_level
from omnistage.config.hooks import resolve_hook
from omnistage.config.stage import StageConfig
from omnistage.core.errors import ErrorInfo, PayloadTooLargeError
from omnistage.core.request import OmniRequest
from omnistage.modeling.protocols import RepeatableProcessor
from omnistage.obs.log import configure_logging
from omnistage.obs.process import signal_at_parents_death
from omnistage.stages.prepare.bounds import bound_memory, bound_time
from omnistage.stages.prepare.coding import encode
from omnistage.stages.prepare.messages import (
    SLACK_NBYTES,
    Answer,
    FromHelper,
    HelperFailed,
    HelperReady,
    Prepare,
    frame,
    read_frame,
)


def serve(line: socket.socket) -> None:
    """Until the other end is gone."""
    told = read_frame(line)
    if told is None:
        return
    config = msgspec.msgpack.decode(told, type=StageConfig)
    try:
        assert config.processor is not None, "a helper is for a stage with a processor"
        load: Any = resolve_hook(config.processor)
        processor = load(config)
    except Exception as error:  # noqa: BLE001 - whatever a family's loader raises is why it cannot be loaded
        line.sendall(frame(HelperFailed(error=ErrorInfo.of(error, stage=config.model_stage))))
        return
    bound_memory(config.processor_memory_nbytes)
    say: FromHelper = HelperReady()
    while True:
        line.sendall(frame(say))
        asked = read_frame(line)
        if asked is None:
            return
        say = answer(config, processor, msgspec.msgpack.decode(asked, type=Prepare).request)


def answer(config: StageConfig, processor: Any, request: OmniRequest) -> Answer:
    """What the processor makes of a request, or why nothing."""
    begun_s = time.monotonic()
    bound_time(config.step_timeout_s * config.threads)
    try:
        made = processor(request)
        took_s = time.monotonic() - begun_s
        value = encode(made)
        if len(value) > config.max_input_nbytes + SLACK_NBYTES:
            told = f"the request: its prepared inputs have {len(value)} bytes"
            accepted = f"at most {config.max_input_nbytes} (max_input_nbytes)"
            raise PayloadTooLargeError(f"{told}; accepted: {accepted}", field="the request")
        repeatable = isinstance(processor, RepeatableProcessor) and processor.depends_on_prompt_alone(request.prompt)
    except MemoryError:
        told = f"the request: preparing it takes more memory than {config.processor_memory_nbytes} bytes"
        error = PayloadTooLargeError(f"{told} (processor_memory_nbytes)", field="the request")
        return Answer(error=ErrorInfo.of(error, stage=config.model_stage), took_s=time.monotonic() - begun_s)
    except Exception as error:  # noqa: BLE001 - whatever a processor makes of a request is that request's fault
        return Answer(error=ErrorInfo.of(error, stage=config.model_stage), took_s=time.monotonic() - begun_s)
    return Answer(value=value, repeatable=repeatable, took_s=took_s)


def die_with(parent: int) -> None:
    """From now on the kernel ends this process when the thread that started it ends; also one that hangs in a library."""
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor, parent = map(int, sys.argv[1:])
    die_with(parent)
    configure_logging(log_level())
    os.set_inheritable(descriptor, False)
    try:
        with socket.socket(fileno=descriptor) as line, suppress(ConnectionError):  # the worker is gone
            serve(line)
    finally:
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
