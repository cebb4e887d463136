"""Writes what tests compare drawn pictures with: every glyph of the font, so small that only shapes and colours are left.

python -m tools.painter.glyphs --font NotoColorEmoji.ttf
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tools.painter.data import small
from tools.painter.font import read_glyphs

FILE = Path(__file__).parents[2] / "tests" / "models" / "demo" / "glyphs.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--font", type=Path, required=True)
    glyphs = read_glyphs(parser.parse_args().font)
    kept = small(glyphs.pictures).round().astype(np.uint8)
    np.savez_compressed(FILE, small=kept, captions=np.array(glyphs.captions))
    print(f"{len(kept)} glyphs, {FILE.stat().st_size} bytes in {FILE}")


if __name__ == "__main__":
    main()
