"""The glyphs of Noto Color Emoji as pictures with names. Needs the packages fonttools and emoji.

The file is NotoColorEmoji.ttf (Debian: fonts-noto-color-emoji), whose glyphs are bitmaps. Names are those of the Unicode CLDR: the
older names of characters mislead ("heavy black heart" is red).
"""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import numpy as np
from emoji import EMOJI_DATA
from fontTools.ttLib import TTFont
from PIL import Image

from tools.painter.data import SIDE, Captioned, Pictures


def read_glyphs(font: Path) -> Captioned:
    """Every glyph of one character that is neither a modifier nor half of a flag, in the order of the font."""
    opened = TTFont(font)
    characters: dict[str, str] = {}
    for code, glyph in opened.getBestCmap().items():
        characters.setdefault(glyph, chr(code))
    found: list[tuple[str, Pictures]] = []
    for strike in opened["CBDT"].strikeData:
        for glyph, data in strike.items():
            caption = _caption(characters.get(glyph, ""))
            if caption is not None:
                found.append((caption, _on_white(data.imageData)))
    return Captioned(tuple(caption for caption, _ in found), np.stack([picture for _, picture in found]))


def _caption(character: str) -> str | None:
    """None for what is no picture of its own."""
    name = unicodedata.name(character, "").lower() if character > "\u2000" else ""
    if not name or any(word in name for word in ("modifier", "regional indicator", "emoji component")):
        return None
    known = EMOJI_DATA.get(character) or EMOJI_DATA.get(f"{character}\ufe0f")
    return known["en"].strip(":").replace("_", " ").lower().replace("\u2019", "'") if known else name


def _on_white(png: bytes) -> Pictures:
    """In the middle of a white square."""
    glyph = Image.open(io.BytesIO(png)).convert("RGBA")
    side = max(glyph.size)
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(glyph, ((side - glyph.width) // 2, (side - glyph.height) // 2))
    return np.asarray(square.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS))
