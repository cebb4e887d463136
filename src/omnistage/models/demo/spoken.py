"""Written English as the words that are said aloud.

What it does: `spoken(text)` reads a text from left to right and gives `Word`s (lower case ASCII
letters and apostrophes; `spelled` ones are said letter by letter) and `Mark`s (punctuation that a
synthesiser turns into pauses and melody). Pure, no dictionary, no state.

What it promises: no letter, digit or symbol is dropped. Numbers, years, ordinals, currency, units,
times, dates, addresses and symbols become words; letters of other scripts are said by their name
("ω" omega, "か" ka), and a symbol without an English word by its Unicode name.
Not said, on purpose: emoji, brackets, control characters, and markdown marks: `* _ ~` around words,
`#` before a heading, backquotes, rules of dashes, the `>` of a quotation, bullets. `|` is a pause.

What it does not know: phonemes, cutting, other languages.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from omnistage.models.demo import number_words


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    spelled: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One of `, . ! ? ; : … — ( ) “ ”`."""

    text: str


Token = Word | Mark
Rule = Callable[["_Reader", re.Match[str]], Iterable[Token]]
Known = Callable[[str], bool]

_TITLES = {
    "dr": "doctor", "mr": "mister", "mrs": "missus", "ms": "miz", "prof": "professor", "jr": "junior",
    "sr": "senior", "vs": "versus", "etc": "et cetera", "approx": "approximately", "dept": "department",
    "gov": "governor", "sen": "senator", "rev": "reverend", "capt": "captain", "sgt": "sergeant", "mt": "mount",
    "st": "saint", "inc": "incorporated", "ltd": "limited", "corp": "corporation",
}  # fmt: skip
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
_SCALES = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion", "t": "trillion"}
_UNITS = {
    "km/h": "kilometers per hour", "m/s": "meters per second", "km": "kilometers", "cm": "centimeters",
    "mm": "millimeters", "nm": "nanometers", "m": "meters", "kg": "kilograms", "mg": "milligrams", "g": "grams",
    "ml": "milliliters", "mL": "milliliters", "l": "liters", "L": "liters", "lbs": "pounds", "lb": "pounds",
    "oz": "ounces", "ft": "feet", "mph": "miles per hour", "GHz": "gigahertz", "MHz": "megahertz",
    "kHz": "kilohertz", "Hz": "hertz", "TB": "terabytes", "GB": "gigabytes", "MB": "megabytes", "KB": "kilobytes",
    "kB": "kilobytes", "kW": "kilowatts", "W": "watts", "V": "volts", "ms": "milliseconds", "s": "seconds",
    "hrs": "hours", "hr": "hours", "h": "hours", "min": "minutes", "°C": "degrees celsius", "℃": "degrees celsius",
    "°F": "degrees fahrenheit", "℉": "degrees fahrenheit", "°": "degrees", "%": "percent", "x": "times",
}  # fmt: skip
_SINGULAR = {"feet": "foot", "degrees": "degree", "inches": "inch"}
_UNCHANGED = frozenset(("percent", "hertz", "gigahertz", "megahertz", "kilohertz", "times"))
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MARKS = {
    ",": ",", ".": ".", "!": "!", "?": "?", ";": ";", ":": ":", "…": "…", "—": "—", "–": "—", "―": "—", "|": ",",
    "(": "(", ")": ")", "“": "“", "”": "”", "„": "“", "«": "“", "»": "”", "。": ".", "，": ",", "、": ",",
    "！": "!", "？": "?", "；": ";", "：": ":", "¿": "", "¡": "",
}  # fmt: skip
_SYMBOLS = {
    "%": "percent", "&": "and", "@": "at", "+": "plus", "=": "equals", "<": "less than", ">": "greater than",
    "/": "slash", "\\": "backslash", "^": "caret", "~": "tilde", "$": "dollar", "€": "euro", "£": "pound",
    "¥": "yen", "₹": "rupee", "¢": "cents", "#": "hash", "*": "star", "_": "underscore", "-": "dash", "−": "minus",
    "×": "times", "·": "times", "÷": "divided by", "±": "plus or minus", "≈": "approximately", "≠": "not equal to",
    "≤": "less than or equal to", "≥": "greater than or equal to", "≡": "is identical to", "∞": "infinity",
    "√": "square root of", "∑": "sum", "∏": "product", "∫": "integral", "∂": "partial", "∆": "delta",
    "∇": "nabla", "∈": "in", "∉": "not in", "∪": "union", "∩": "intersection", "⊂": "subset of", "∀": "for all",
    "∃": "there exists", "∧": "and", "∨": "or", "¬": "not", "→": "to", "←": "from", "⇒": "implies",
    "↔": "to and from", "⇔": "if and only if", "²": "squared", "³": "cubed", "½": "one half", "¼": "one quarter",
    "¾": "three quarters", "⅓": "one third", "⅔": "two thirds", "°": "degrees", "µ": "micro", "©": "copyright",
    "®": "registered", "™": "trademark", "§": "section", "¶": "paragraph", "†": "dagger", "‰": "per mille",
    "№": "number", "⁄": "over", "℃": "degrees celsius", "℉": "degrees fahrenheit",
}  # fmt: skip
_ADDRESS_SYMBOLS = _SYMBOLS | {
    ".": "dot", ":": "colon", "?": "question mark", ",": "comma", ";": "semicolon", "!": "exclamation mark",
}  # fmt: skip
_SILENT = frozenset("[]{}`\"'’‘‚•◦▪●○■□‣⁃")
_SILENT_CATEGORIES = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Me", "Mc", "Sk", "Zs", "Zl", "Zp"))
# Said as a word although written in capitals: acronyms, and short words that are stressed that way.
_SAID_CAPITALS = frozenset((
    "NASA", "NATO", "COVID", "UNESCO", "UNICEF", "OPEC", "ASCII", "JSON", "LASER", "RADAR", "AIDS", "ASAP",
    "SCUBA", "SWAT", "YAML", "FIFA", "NASDAQ", "THE", "AND", "NOT", "ALL", "ANY", "BUT", "CAN", "FOR", "YOU",
    "ARE", "WAS", "HAS", "HOW", "WHO", "WHY", "NEW", "ONE", "TWO", "YES", "NOW", "DO", "NO", "IS", "IF", "IN",
    "ON", "TO", "OF", "MY", "WE", "BE", "SO", "AT",
))  # fmt: skip
_ROMAN = {
    "II": "two", "III": "three", "IV": "four", "VI": "six", "VII": "seven", "VIII": "eight", "IX": "nine",
}  # fmt: skip
_VOWELS = frozenset("AEIOUY")
_CAPITALS = re.compile(r"([A-Z]{2,})('?s)?")
_CAMEL = re.compile(r"[A-Z]{2,}(?=[A-Z][a-z])|[A-Z]{2,}(?:'?s)?(?![a-z])|[A-Z]?[a-z']+|[A-Z]")
_LATIN_NAME = re.compile(r"LATIN (SMALL|CAPITAL) LETTER ([A-Z]{1,2})(?: WITH .*)?")
_FOLDED = {"ß": "ss", "ẞ": "SS", "þ": "th", "Þ": "Th", "ı": "i", "ŋ": "ng", "ə": "e", "œ": "oe", "Œ": "Oe"}
_PICTURES = ((0x2190, 0x21FF), (0x2500, 0x27BF), (0x2B00, 0x2BFF), (0x1F000, 0x1FAFF), (0xE0000, 0xE0FFF))
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)*"
_YEAR = re.compile(r"(?:1[1-9]|20)\d\d")
_SIGN = r"(?P<sign>(?<![\w)])[-−])?"
_END = r"(?![^\W_])"  # no letter or digit follows
_START = r"(?<![^\W_])"


def spoken(text: str, known: Known = lambda word: False) -> list[Token]:
    """The words and marks of `text`, in order.

    `known(word)` says whether a dictionary has a lower case word: a word in capitals that it has is said, others
    are spelt. It must be a pure function.
    """
    text = "".join(_folded(character) for character in text)
    reader = _Reader(text, known, shouted=not any(character.islower() for character in text))
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        for pattern, rule in _RULES:
            if (match := pattern.match(text, at)) is not None:
                tokens.extend(rule(reader, match))
                at = match.end()
                break
    return tokens


@dataclass(frozen=True, slots=True)
class _Reader:
    """What the rules need beside their match."""

    text: str
    known: Known
    shouted: bool

    def around(self, match: re.Match[str]) -> tuple[str, str]:
        """The characters before and after a match, "" at the ends."""
        return self.text[match.start() - 1 : match.start()], self.text[match.end() : match.end() + 1]

    def letters(self, letters: str) -> list[Token]:
        """A run of ASCII letters, with apostrophes inside."""
        capitals = _CAPITALS.fullmatch(letters)
        if capitals is not None:
            return self._capitals(capitals[1], plural=bool(capitals[2]))
        if len(letters) == 1:
            return [Word(letters.lower(), spelled=letters.lower() not in "ai")]
        if _VOWELS.isdisjoint(letters.upper()) and not self.known(letters.lower()):
            return _spell(letters.replace("'", ""))
        parts = _CAMEL.findall(letters)
        if len(parts) == 1 or self.known(letters.lower()):
            return [Word(letters.lower())]
        return [token for part in parts for token in self.letters(part)]

    def _capitals(self, letters: str, *, plural: bool) -> list[Token]:
        word = letters.lower()
        if letters in _ROMAN and not self.shouted:
            return [Word(_ROMAN[letters])]
        known = self.known(word) and (self.shouted or len(letters) > 3)
        long = len(letters) > 5 and not _VOWELS.isdisjoint(letters)
        if known or long or letters in _SAID_CAPITALS:
            return [Word(word + "'s" if plural else word)]
        spelt = _spell(word)
        return [*spelt[:-1], Word(word[-1] + "'s", spelled=True)] if plural else spelt


def _folded(character: str) -> str:
    """A letter with marks or a compatibility form as plain ones; what the tables know stays."""
    if character.isascii() or character in _SYMBOLS or character in _MARKS:
        return character
    if character in _FOLDED:
        return _FOLDED[character]
    name = unicodedata.name(character, "")
    latin = _LATIN_NAME.fullmatch(name)
    if latin is not None:
        return latin[2] if latin[1] == "CAPITAL" else latin[2].lower()
    if name.startswith("HANGUL"):
        return character  # its decomposition would take a syllable to pieces
    plain = unicodedata.normalize("NFKD", character)
    kept = "".join(part for part in plain if not unicodedata.combining(part))
    folded = "".join(str(unicodedata.digit(part)) if part.isdigit() else part for part in kept)
    return folded if folded.strip() else character


def _said(text: str) -> list[Token]:
    return [Word(word) for word in text.split()]


def _words(words: Iterable[str]) -> list[Token]:
    return [Word(word) for word in words]


def _spell(letters: str) -> list[Token]:
    return [Word(letter, spelled=True) for letter in letters.lower()]


def _value(number: str) -> list[str]:
    """Words of `_NUMBER`."""
    plain = number.replace(",", "")
    return number_words.decimal(plain) if "." in plain else number_words.integer(plain)


# --- rules: tried in this order at every position; the first that matches takes its characters -----------------------


def _address(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    """A URL, e-mail address or file name: words, and every symbol by its name."""
    tokens: list[Token] = []
    for kind, characters in groupby(match[0], lambda character: (character.isdecimal(), character.isalpha())):
        part = "".join(characters)
        if kind == (True, False):
            tokens += _words(number_words.integer(part))
        elif kind == (False, True):
            tokens += reader.letters(part) if part.isascii() else _named(part)
        else:
            tokens += [word for symbol in part for word in _said(_ADDRESS_SYMBOLS.get(symbol) or unicode_name(symbol))]
    return tokens


def _initials(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    return _spell(match[0].replace(".", ""))


def _title(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    return _said(_TITLES[match[1].lower()])


def _currency(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    one, many, one_cent, cents = _CURRENCIES[match["symbol"]]
    amount, scale = match["amount"], match["scale"]
    if scale:
        return _words(_value(amount)) + _said(_SCALES.get(scale.lower(), scale.lower())) + [Word(many)]
    whole, dot, fraction = amount.replace(",", "").partition(".")
    if not dot or len(fraction) != 2:
        return [*_words(_value(amount)), Word(one if amount == "1" else many)]
    tokens = [*_words(number_words.integer(whole)), Word(one if whole == "1" else many)]
    if int(fraction):
        tokens += [Word("and"), *_words(number_words.cardinal(int(fraction)))]
        tokens.append(Word(one_cent if fraction == "01" else cents))
    return tokens


def _date(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    month, day = int(match[2]), int(match[3])
    return _words([_MONTHS[month - 1], *number_words.ordinal(day), *number_words.year(int(match[1]))])


def _clock(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    words = number_words.cardinal(int(match[1]))
    for part in match[2].split(":")[1:]:
        words += ["oh", *number_words.cardinal(int(part))] if 0 < int(part) < 10 else number_words.cardinal(int(part))
    if match[2] == ":00":
        words = number_words.cardinal(int(match[1])) + ([] if match[3] else ["o'clock"])
    return _words(words)


def _decade(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    value = int(match[1])
    return _words(number_words.plural(number_words.year(value) if value > 99 else number_words.cardinal(value)))


def _ordinal(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    return _words(number_words.ordinal(int(match[1].replace(",", ""))))


def _telephone(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    tokens: list[Token] = []
    for part in match[0].split("-"):
        tokens += [*_words(number_words.digits(part)), Mark(",")]
    return tokens[:-1]


def _measure(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    """A number with its unit."""
    amount, unit = match["amount"], match["unit"] or match["spaced"]
    tokens: list[Token] = [Word("minus")] if match["sign"] else []
    name = _UNITS[unit]
    return [*tokens, *_words(_value(amount)), *_said(_singular(name) if amount == "1" else name)]


def _number(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    sign, amount = match["sign"], match["amount"]
    if not sign and _YEAR.fullmatch(amount):
        return _words(number_words.year(int(amount)))
    return _words(["minus"] if sign else []) + _words(_value(amount))


def _singular(name: str) -> str:
    head, _, rest = name.partition(" ")
    if head in _UNCHANGED:
        return name
    return f"{_SINGULAR.get(head, head.removesuffix('s'))} {rest}".strip()


def _mixed(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    """Letters and digits in one word: H2O, MP3, Python3, 4K. Short runs of letters are spelt."""
    tokens: list[Token] = []
    for part in re.findall(r"\d+|[A-Za-z]+|.", match[0]):
        if part.isdecimal():
            tokens += _words(number_words.integer(part))
        elif part.isascii():
            tokens += _spell(part) if len(part) <= 2 else reader.letters(part)
        else:
            tokens += _named(part)
    return tokens


def _silence(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    return ()


def _say(words: str) -> Rule:
    return lambda reader, match: _said(words)


def _half_of_day(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    return _spell(match[1] + "m")


def _point(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    return [word for part in match[0].split(".")[1:] for word in _words(["point", *number_words.digits(part)])]


def _ascii_letters(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    return reader.letters(match[0].replace("’", "'"))


def _dashes(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    """Hyphens join words, two of them or one between spaces make a pause, one before a word is said."""
    before, after = reader.around(match)
    if len(match[0]) > 1 or (before.isspace() and after.isspace()):
        return [Mark("—")]
    return [Word("dash")] if before in " (" and after.isalnum() else ()


def _emphasis(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    """`*`, `_` and `~` are said between letters or digits, or between spaces; else they are markdown."""
    before, after = reader.around(match)
    inside = before.isalnum() and after.isalnum()
    apart = before.isspace() and after.isspace()
    if match[0] == "~" and after.isdigit() and not inside:
        return [Word("about")]
    if len(match[0]) > 1 or not (inside or apart):
        return ()
    return [Word({"*": "times", "_": "underscore", "~": "tilde"}[match[0]])]


def _hash(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    before, after = reader.around(match)
    if after.isdigit():
        return [Word("number")]
    if before.isalpha():
        return [Word("sharp")]
    return [Word("hashtag" if after.isalpha() else "hash")] if len(match[0]) == 1 else ()


def _marks(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    mark = _MARKS[match[0][0]]
    return [Mark("…" if match[0].startswith("..") else mark)] if mark else []


def _opening_or_closing_quote(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    before, _ = reader.around(match)
    return [Mark("“" if not before or before.isspace() or before in "([—–*_" else "”")]


def _other(reader: _Reader, match: re.Match[str]) -> Iterable[Token]:
    """Any character that no rule takes."""
    return _named(match[0])


def _named(characters: str) -> list[Token]:
    return [Word(word) for character in characters for word in _name_of(character).split()]


def _name_of(character: str) -> str:
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    if character in _SILENT or unicodedata.category(character) in _SILENT_CATEGORIES or _is_picture(character):
        return ""
    return unicode_name(character)


def _is_picture(character: str) -> bool:
    """Emoji, dingbats, box drawing and geometric shapes: decoration."""
    return any(first <= ord(character) <= last for first, last in _PICTURES)


def unicode_name(character: str) -> str:
    """What a letter of another script or a rare symbol is called: "ω" omega, "か" ka, "漢" ideograph."""
    name = unicodedata.name(character, "")
    if "IDEOGRAPH" in name:
        return "ideograph"
    name = re.sub(r" WITH .*| SIGN$", "", name)
    name = re.sub(r".*\b(?:LETTER|SYLLABLE|VOWEL SIGN) (?:SMALL |FINAL )?(?=\w)", "", name)
    words = " ".join(re.findall(r"[A-Z]+", name)).lower()
    return {"lamda": "lambda"}.get(words, words) or "symbol"


_UNIT_ATTACHED = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_UNIT_APART = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True) if len(unit) > 1)
_SCALE = rf"(?:\s?(?P<scale>(?i:thousand|million|billion|trillion)|bn|[kKmMbBtT]){_END})?"
_URL = r"[^\s<>()\[\]\"]*[^\s<>()\[\]\".,;:!?*_`'’”]"
_RULE_SOURCES: tuple[tuple[str, Rule], ...] = (
    (r"(?m:^[ \t]*(?:[-*_=~]{3,}|`{3,}|[|:\- ]{3,})[ \t]*$)", _silence),
    (r"(?m:^[ \t]*(?:[-*]|#{1,6}|>)[ \t]+)", _silence),
    (r"(?<=\d)\s?([aApP])\.?[mM]\b\.?", _half_of_day),
    (r"(?<=\d)\s*[-–]\s*(?=\d)", _say("to")),
    (r"\s+", _silence),
    (r"(?:https?|ftp)://" + _URL, _address),
    (r"www\." + _URL, _address),
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+" + _END, _address),
    (_START + r"(?:[A-Za-z]\.){2,}", _initials),
    (_START + r"(?:[A-Za-z]\.)+[A-Za-z]" + _END, _initials),
    (rf"(?i:{_START}({'|'.join(_TITLES)})\.)", _title),
    (_START + r"[A-Za-z][\w-]*(?:\.[A-Za-z][\w-]*)+" + _END, _address),
    (rf"(?P<symbol>[$€£¥₹])\s?(?P<amount>{_NUMBER}){_SCALE}", _currency),
    (_START + r"(1[1-9]\d\d|20\d\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])" + _END, _date),
    (_START + r"([01]?\d|2[0-4])((?::[0-5]\d){1,2})(?!\d)(?=(\s?[apAP]\.?[mM]\b)?)", _clock),
    (_START + r"['’]?((?:1[1-9]|20)?\d0)['’]?s" + _END, _decade),
    (_START + r"(\d{1,3}(?:,\d{3})+|\d{1,15})(?:st|nd|rd|th)" + _END, _ordinal),
    (_START + r"(?:\d{3}-)?\d{3}-\d{4}" + _END, _telephone),
    (r"(?<=\d):(?=\d)", _say("to")),
    (
        rf"{_SIGN}(?P<amount>{_NUMBER})(?:(?P<unit>{_UNIT_ATTACHED}){_END}| (?P<spaced>{_UNIT_APART}){_END})",
        _measure,
    ),
    (r"(?=[^\W_]*\d)(?=[^\W_]*[^\W\d_])[^\W_]+", _mixed),
    (rf"{_SIGN}(?P<amount>{_NUMBER})", _number),
    (r"(?<![A-Za-z_.])(?:\.\d+)+", _point),
    (r"(?<![\w.!?])\.(?=[A-Za-z])", _say("dot")),
    (r"[A-Za-z]+(?:['’][A-Za-z]+)*", _ascii_letters),
    (r"-+", _dashes),
    (r"\*+|_+|~+", _emphasis),
    (r"#+", _hash),
    (r'"', _opening_or_closing_quote),
    (r"\.{2,}|([" + re.escape("".join(_MARKS)) + r"])\1*", _marks),
    (r"(?s:.)", _other),
)
_RULES = tuple((re.compile(source), rule) for source, rule in _RULE_SOURCES)
