"""Makes the painter out of a font.

    python -m tools.painter.make --font NotoColorEmoji.ttf --out painter

It takes hours on a few cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.painter.data import training_set
from tools.painter.font import read_glyphs
from tools.painter.recipe import Recipe, make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--font", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    glyphs = read_glyphs(args.font)
    chosen, _ = training_set(glyphs)
    print(make(glyphs, chosen, args.out, Recipe()))


if __name__ == "__main__":
    main()
