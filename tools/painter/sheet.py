"""Draws the sheet of the documentation: sixteen prompts, the last six of which were never shown in training.

python -m tools.painter.sheet
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from omnistage import DiffusionParams, Omni

PROMPTS = (
    "red heart", "cat face", "sun", "pizza",
    "red apple", "soccer ball", "rocket", "snowman",
    "a deciduous tree", "a pink octopus", "blue apple", "green cat face",
    "red umbrella", "purple house", "green car", "purple banana",
)  # fmt: skip
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "omnistage" / "models" / "demo" / "painter"
SHEET = ROOT / "docs" / "images" / "painter_sheet.png"
COLUMNS, SIDE, GAP, LINE = 4, 128, 8, 14
"""Pixels, of pictures at twice their size with a line of text above."""


def main() -> None:
    params = DiffusionParams(seed=1, height=64, width=64, num_inference_steps=20, guidance_scale=3.5)
    with Omni(str(FOLDER), inline=True) as omni:
        drawn = omni.generate(list(PROMPTS), params, use_tqdm=False)
    rows = -(-len(PROMPTS) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * (SIDE + GAP), rows * (SIDE + LINE + GAP)), "white")
    pen = ImageDraw.Draw(sheet)
    for place, (prompt, output) in enumerate(zip(PROMPTS, drawn, strict=True)):
        left, top = place % COLUMNS * (SIDE + GAP), place // COLUMNS * (SIDE + LINE + GAP)
        pen.text((left, top), prompt, fill="black")
        picture = Image.fromarray(output.images[0]).resize((SIDE, SIDE), Image.Resampling.NEAREST)
        sheet.paste(picture, (left, top + LINE))
    sheet.save(SHEET, optimize=True)
    print(f"{SHEET}: {SHEET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
