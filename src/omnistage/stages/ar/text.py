"""Stop strings in a text that comes in pieces. Knows no tokens.

Text that could be the beginning of a stop string is kept back until it is known not to be one.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStringState:
    """Looks for the earliest of `stops`. With `include` the stop string itself is given out, else the text ends before it."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def push(self, piece: str) -> tuple[str, str | None]:
        """(text that may be given out, the stop string that was found)."""
        if not self._stops:
            return piece, None
        text = self._held + piece
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            start, stop = min(found)
            self._held = ""
            return text[: start + len(stop) if self._include else start], stop
        kept = self._unsure(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept], None

    def flush(self) -> str:
        """What was kept back: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _unsure(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)), 0)
