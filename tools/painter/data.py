"""What the painter learns from: pictures of one thing each with their names, some of them in other colours too. Knows no font."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 64
SMALL = 8
"""Pixels on a side of a picture, and of what is compared of it."""

Pictures = npt.NDArray[np.uint8]


def listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split()).split(", "))


PICKED = listed(
    """
red heart, broken heart, cat face, dog face, mouse face, rabbit face, fox, bear, panda, koala, tiger face, lion, cow
face, pig face, frog, monkey face, chicken, penguin, bird, baby chick, duck, eagle, owl, wolf, horse face, unicorn,
honeybee, bug, butterfly, snail, lady beetle, ant, spider, turtle, snake, lizard, octopus, squid, shrimp, lobster,
crab, blowfish, tropical fish, fish, dolphin, spouting whale, shark, crocodile, zebra, gorilla, elephant,
hippopotamus, camel, giraffe, kangaroo, cat, dog, rooster, turkey, peacock, parrot, swan, flamingo, mouse, hedgehog,
dragon face, cactus, christmas tree, evergreen tree, deciduous tree, palm tree, seedling, four leaf clover, maple
leaf, mushroom, tulip, rose, hibiscus, sunflower, blossom, sun, sun with face, full moon, crescent moon, star, glowing
star, cloud, rainbow, snowflake, snowman, fire, droplet, water wave, umbrella, high voltage, green apple, red apple,
pear, tangerine, lemon, banana, watermelon, grapes, strawberry, cherries, peach, mango, pineapple, coconut, kiwi
fruit, tomato, eggplant, avocado, broccoli, cucumber, hot pepper, ear of corn, carrot, garlic, onion, potato,
croissant, bread, pretzel, cheese wedge, egg, cooking, bacon, hamburger, french fries, pizza, hot dog, sandwich, taco,
burrito, popcorn, rice ball, sushi, doughnut, cookie, birthday cake, shortcake, cupcake, pie, chocolate bar, candy,
lollipop, soft ice cream, ice cream, hot beverage, teacup without handle, wine glass, beer mug, soccer ball,
basketball, american football, baseball, tennis, volleyball, pool 8 ball, trophy, 1st place medal, bullseye, game die,
guitar, trumpet, violin, drum, microphone, headphone, video game, automobile, taxi, bus, police car, ambulance, fire
engine, delivery truck, tractor, bicycle, motorcycle, locomotive, airplane, helicopter, rocket, flying saucer,
sailboat, ship, anchor, house, castle, tent, church, mountain, volcano, desert island, ferris wheel, watch, mobile
phone, laptop, desktop computer, printer, camera, television, radio, telephone, light bulb, flashlight, candle, money
bag, gem stone, hammer, wrench, gear, bomb, kitchen knife, dagger, shield, pill, syringe, telescope, microscope, key,
locked, door, bed, toilet, shower, balloon, party popper, wrapped gift, teddy bear, envelope, package, pencil,
scissors, pushpin, paperclip, books, open book, notebook, newspaper, magnifying glass tilted left, bell, crown, top
hat, glasses, sunglasses, necktie, t-shirt, jeans, dress, running shoe, high-heeled shoe, backpack, handbag, ring,
lipstick, eye, ear, nose, tongue, brain, tooth, skull, ghost, alien, robot, pile of poo, jack-o-lantern, clown face,
grinning face, crying face, angry face, smiling face with sunglasses, smiling face with heart-eyes, thumbs up,
clapping hands, red circle, blue circle, green circle, yellow circle, orange circle, purple circle, red square, blue
square, green square, yellow square, orange square, purple square, blue heart, green heart, yellow heart, purple
heart, orange heart
"""
)
"""Glyphs of one thing each that a small picture shows well."""

COLOURS = {"red": 0.0, "orange": 0.075, "yellow": 0.15, "green": 0.33, "blue": 0.6, "purple": 0.77, "pink": 0.9}
"""Hues, in turns of the circle."""

OBJECTS = {
    "red apple": "apple",
    "automobile": "car",
    "tropical fish": "fish",
    "wrapped gift": "gift",
    "locomotive": "train",
} | {
    name: name
    for name in listed(
        """house, umbrella, cat face, balloon, rocket, bicycle, tulip, butterfly, t-shirt, dress, bell, star, guitar, teddy bear,
        octopus, frog, bus, mushroom, banana"""
    )
}
"""Glyphs that come in every colour, and what they are called then."""

HELD_OUT = listed(
    "blue apple, green cat face, red umbrella, purple house, green car, blue teddy bear, red frog, purple banana"
)
"""Never shown in training: they tell whether colours and objects are known apart."""

OTHER_NAMES = {
    "deciduous tree": "tree",
    "automobile": "car",
    "locomotive": "train",
    "hot beverage": "cup of coffee",
    "airplane": "plane",
    "mobile phone": "phone",
    "honeybee": "bee",
}
_NAMELESS = frozenset(("a", "left", "of", "tilted", "up", "with", "without"))
"""Words of captions that name nothing."""
_PASTEL = 0.55


@dataclass(frozen=True, slots=True)
class Captioned:
    """`pictures` [n, 64, 64, 3], on white."""

    captions: tuple[str, ...]
    pictures: Pictures


def training_set(glyphs: Captioned) -> tuple[Captioned, Captioned]:
    """The picked glyphs and the recoloured ones, and those that are held out."""
    shown: dict[str, Pictures] = {caption: _glyph(glyphs, caption) for caption in PICKED}
    hidden: dict[str, Pictures] = {}
    for caption, name in OBJECTS.items():
        for colour, hue in COLOURS.items():
            called = f"{colour} {name}"
            if called not in shown:
                into = hidden if called in HELD_OUT else shown
                into[called] = _recoloured(_glyph(glyphs, caption), hue, _PASTEL if colour == "pink" else 1.1)
    return _captioned(shown), _captioned(hidden)


def small(pictures: Pictures) -> npt.NDArray[np.float32]:
    """[n, 64, 64, 3] -> [n, 8, 8, 3], means of squares: shapes and colours, by which pictures are compared."""
    cut = pictures.reshape(len(pictures), SMALL, SIDE // SMALL, SMALL, SIDE // SMALL, 3)
    return np.asarray(cut.mean((2, 4), dtype=np.float32))


def known_words(captions: Sequence[str]) -> list[str]:
    """The words that name something, in captions and their other names."""
    told = [*captions, *OTHER_NAMES.values()]
    return sorted({word for text in told for word in re.findall(r"\w+(?:-\w+)*", text)} - _NAMELESS)


def _captioned(pictures: dict[str, Pictures]) -> Captioned:
    return Captioned(tuple(pictures), np.stack(list(pictures.values())))


def _glyph(glyphs: Captioned, caption: str) -> Pictures:
    return np.asarray(glyphs.pictures[glyphs.captions.index(caption)])


def _recoloured(picture: Pictures, hue: float, strength: float) -> Pictures:
    """All that has a colour in another one; `strength` times as saturated."""
    values = np.array(Image.fromarray(picture).convert("HSV"), np.float32)
    coloured = values[..., 1] > 50
    values[coloured, 0] = hue * 255
    values[coloured, 1] = np.clip(values[coloured, 1] * strength, 0, 255)
    return np.asarray(Image.fromarray(values.astype(np.uint8), "HSV").convert("RGB"))
