"""Tokens to text as they come: every piece is final, and all pieces joined are the whole text.

A character may be spread over up to four tokens; what could be its beginning is kept back until it is complete, or until
`flush`. Knows a `tokenizers.Tokenizer` and nothing of requests or stop strings.
"""

from __future__ import annotations

from typing import Protocol

# What a decoder writes for bytes that are no character. An unfinished character of UTF-8 is at most three of them.
_BROKEN = "\ufffd"
_UNFINISHED_CHARS = 3
_WINDOW_TOKENS = 8


class Decoder(Protocol):
    """The part of `tokenizers.Tokenizer` that is used here."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str: ...


class DetokenizerState:
    """The text of one growing list of tokens.

    Only a window of tokens is decoded again for a new one. It begins at a border between characters, at least one piece before
    the last border, because some decoders treat the first token of a text differently from the others. It is moved when it has
    become long: what was given out of a moved window has to be decoded, too.
    """

    def __init__(self, decoder: Decoder, *, skip_special_tokens: bool) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []
        self._fresh_from = 0  # tokens of the window from here on came after the last border
        self._shown = ""  # the part of the window's text that was given out
        self._silent = 0  # tokens since something was given out

    def push(self, token: int) -> str:
        """The text that has become certain."""
        self._window.append(token)
        self._silent += 1
        text = self._text()
        if not text.startswith(self._shown) and self._silent <= _UNFINISHED_CHARS:
            return ""  # an unfinished character spoils the finished ones before it, where bytes are decoded in runs
        certain = len(text)
        while certain > max(len(self._shown), len(text) - _UNFINISHED_CHARS) and text[certain - 1] == _BROKEN:
            certain -= 1
        piece = text[len(self._shown) : certain]
        if piece:
            self._shown = text[:certain]
            self._silent = 0
            if certain == len(text):
                if len(self._window) >= _WINDOW_TOKENS:
                    self._move_window()
                self._fresh_from = len(self._window)
        return piece

    def flush(self) -> str:
        """What was kept back, as it is."""
        text = self._text()
        piece = text[len(self._shown) :]
        self._shown = text
        return piece

    def _move_window(self) -> None:
        self._window = self._window[self._fresh_from :]
        self._shown = self._text()

    def _text(self) -> str:
        return self._decoder.decode(self._window, skip_special_tokens=self._skip_special_tokens)
