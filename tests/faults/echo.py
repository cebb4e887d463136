"""A server that does nothing, beside the one that is looked at: how long the machine itself keeps a question waiting.

Of the standard library, in a process of its own, asked like /health and at the same times. Times in seconds.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from types import TracebackType

_PROGRAM = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
_ASK_S = 5.0


class Echo:
    """Runs until the end of the `with`."""

    def __enter__(self) -> Echo:
        self._process = subprocess.Popen([sys.executable, "-S", "-c", _PROGRAM], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate(timeout=_ASK_S)

    def took_s(self) -> float:
        """How long one answer takes."""
        began = time.monotonic()
        urllib.request.urlopen(f"http://127.0.0.1:{self._port}/", timeout=_ASK_S).close()
        return time.monotonic() - began
