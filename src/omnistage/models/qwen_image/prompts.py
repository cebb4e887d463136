"""A prompt as Qwen-Image's text encoder reads it: a wish inside the words with which the model was trained. Knows no torch.

The first rows of the encoder's output belong to those words and are dropped by their count, which is that of the published
tokenizer, whatever another tokenizer makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.modeling.text_processor import TextProcessor, load_text_processor

MOST_TOKENS = 1024
"""Of a wish with what is written around it, behind what is dropped."""

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Template:
    """`before` and `after` a wish; rows of the first `dropped` tokens are not used. `picture` is what stands for picture k = 1, 2,
    ... between `before` and the wish."""

    before: str
    dropped: int
    picture: str = ""
    after: str = "<|im_end|>\n<|im_start|>assistant\n"

    def filled(self, wish: str, pictures: int = 0) -> str:
        seen = "".join(self.picture.replace("{}", str(number + 1)) for number in range(pictures))
        return f"{self.before}{seen}{wish}{self.after}"


_DRAWING = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships "
    "of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
DRAWING = Template(_DRAWING, 34)


class WishReader:
    """Text to ids, by the folder's tokenizer."""

    def __init__(self, text: TextProcessor, template: Template) -> None:
        self._text = text
        self.template = template

    def ids(self, wish: str, field: str, pictures: int = 0) -> Ids:
        """[tokens], with one token for each picture. Raises InvalidRequestError for a text that is too long."""
        filled = self.template.filled(wish, pictures)
        most = self._text.max_chars - (len(filled) - len(wish))
        if len(wish) > most:  # said of the wish alone: nobody has written the words around it
            accepted = f"at most {most}, more than {MOST_TOKENS} tokens hold"
            raise InvalidRequestError.of(field, f"{wish[:20]}... of {len(wish)} characters", accepted)
        ids = self._text.encode(filled, field, add_special_tokens=True)
        kept = len(ids) - self.template.dropped
        if kept > MOST_TOKENS:
            raise InvalidRequestError.of(field, f"a text of {kept} tokens", f"at most {MOST_TOKENS}")
        return np.array(ids, np.int32)


def load_wish_reader(tokenizer: Path, vocab_size: int, template: Template) -> WishReader:
    """Raises BrokenCheckpointError for a folder without a readable tokenizer, or one that nothing would be left of."""
    text = load_text_processor(tokenizer, vocab_size, template.dropped + MOST_TOKENS)
    least = len(text.tokenizer.encode(template.filled("")).ids)
    if least <= template.dropped:
        told = f"makes {least} tokens of the words around a prompt, of which {template.dropped} are dropped"
        raise BrokenCheckpointError(f"the tokenizer of {tokenizer} {told}: it is another model's tokenizer")
    return WishReader(text, template)
