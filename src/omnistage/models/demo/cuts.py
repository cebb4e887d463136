"""Incremental cutting of streamed text into phrases for a speech synthesiser.

What it does: takes text as it arrives and gives back phrases ("cuts"): the first one as soon as a
clause ends, so that sound can start early, then one per sentence. No cut has more than
`limit` phonemes: a longer sentence is divided at clause borders, else at words, else inside a word.

What it promises:

* Cuts are a function of the whole text. They never depend on how the text was delivered, because
  all decisions are a fold over *atoms* (see `_take_atoms`), and the atoms of a text are unique.
* Nothing is lost: the cuts joined equal the text but for whitespace between two cuts.
* The text that waits is bounded (`_MAX_CUT_CHARACTERS` and one atom).

What it does not know: phonemes. `count(text)` gives their number and must be a pure function.

Borders. A newline ends a sentence (headings, list items), so do `! ? … .` unless the next word
begins in lower case. A full stop ends none after an abbreviation ("Dr.", "e.g.", "U.S."), an
initial, or a list number at the head of a line ("1."). Numbers, versions and addresses ("3.14",
"1,000", "example.com") have no whitespace inside, hence no border. `, ; : — –` end a clause.
Quotes, brackets and markdown marks around a word are looked through. Marks are kept in the cuts;
what is not to be read aloud is the phonemiser's business. Cuts that say nothing (a line of dashes,
an emoji) are joined to the next one; only the last cut of a text can be silent, and one before a
word that is itself longer than a cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

PHONEME_LIMIT = 150
_MAX_ATOM_CHARACTERS = 200
_MAX_CUT_CHARACTERS = 1000

_CLOSERS = "\"'”’»)]}*_~`"
_OPENERS = "\"'“‘«([{*_~`#>"
_CLAUSE_ENDS = ",;:—–，；：、"
_STOPS = "!?…。！？"
_INNER_ENDS = "—。！？；，、"  # these end an atom even when no whitespace follows
_ABBREVIATIONS = frozenset((
    "dr", "mr", "mrs", "ms", "prof", "sr", "jr", "st", "mt", "messrs", "rev", "hon", "gen", "col", "capt", "lt",
    "sgt", "cmdr", "gov", "sen", "rep", "pres", "vs", "cf", "al", "approx", "ca", "no", "nos", "vol", "fig",
    "figs", "eq", "sec", "ch", "pp", "ed", "eds", "est", "dept", "univ", "inc", "ltd", "co", "corp", "jan", "feb",
    "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec", "mon", "tue", "tues", "wed", "thu",
    "thur", "thurs", "fri", "sat", "sun", "e.g", "i.e", "a.k.a", "ave", "blvd", "rd", "min", "max", "tel", "ext",
))  # fmt: skip
# These end a sentence after all when the next word has a capital.
_ENDING_ABBREVIATIONS = frozenset(
    ("etc", "inc", "ltd", "co", "corp", "al", "jr", "sr", "no", "min", "max", "sun", "sat", "ext", "tel")
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+")
_LIST_NUMBER = re.compile(r"\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,4})[.)]")
_ATOM = re.compile(rf"(\s*)(\S(?:(?<![{_INNER_ENDS}])\S){{0,{_MAX_ATOM_CHARACTERS - 1}}})(\s*)")

Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Atom:
    """A word with what follows it: the whitespace, and the first character of the next atom ("" at the end)."""

    word: str
    gap: str
    following: str


@dataclass(frozen=True, slots=True)
class CutState:
    """`waiting`: text without a decision; `pending`: atoms of the cut being formed; `clause_end`: how many of
    them end with the last clause border; `began`: a cut was given out; `line_start`: the next atom opens a line."""

    waiting: str = ""
    pending: tuple[Atom, ...] = ()
    clause_end: int = 0
    began: bool = False
    line_start: bool = True


def push(state: CutState, text_delta: str, count: Count, limit: int = PHONEME_LIMIT) -> tuple[CutState, list[str]]:
    """Take more text; the cuts that nothing to come can change any more."""
    atoms, waiting = _take_atoms(state.waiting + text_delta, ended=False)
    return _fold(replace(state, waiting=waiting), atoms, count, limit)


def finish(state: CutState, count: Count, limit: int = PHONEME_LIMIT) -> list[str]:
    """The text is over: the cuts that are left."""
    atoms, _ = _take_atoms(state.waiting, ended=True)
    state, cuts = _fold(replace(state, waiting=""), atoms, count, limit)
    if state.pending:
        cuts.append(_joined(state.pending))
    return cuts


def cut_text(text: str, count: Count, limit: int = PHONEME_LIMIT) -> list[str]:
    """The cuts of a whole text."""
    state, cuts = push(CutState(), text, count, limit)
    return cuts + finish(state, count, limit)


def _take_atoms(text: str, *, ended: bool) -> tuple[list[Atom], str]:
    """All atoms that are certain, and the rest. One is certain once the first character after its gap is there.

    An atom is a run of non-whitespace that ends after an em dash or a full-width stop, at the latest after
    `_MAX_ATOM_CHARACTERS`.
    """
    atoms = []
    start = 0
    while (match := _ATOM.match(text, start)) is not None:
        following = text[match.end() : match.end() + 1]
        if not following and not ended:
            break
        atoms.append(Atom(match[2], match[3], following))
        start = match.end()
    return atoms, text[start:]


def _fold(state: CutState, atoms: list[Atom], count: Count, limit: int) -> tuple[CutState, list[str]]:
    cuts: list[str] = []
    for atom in atoms:
        state = _make_room(state, atom, cuts, count, limit)
        state = _append(state, atom, cuts, count, limit)
    return state, cuts


def _make_room(state: CutState, atom: Atom, cuts: list[str], count: Count, limit: int) -> CutState:
    """Give out the head of the pending atoms until `atom` fits behind the rest."""
    while state.pending and not _fits(_joined((*state.pending, atom)), count, limit):
        head = state.clause_end or len(state.pending)
        cuts.append(_joined(state.pending[:head]))
        state = replace(state, pending=state.pending[head:], clause_end=0, began=True)
    return state


def _append(state: CutState, atom: Atom, cuts: list[str], count: Count, limit: int) -> CutState:
    """Put `atom` behind the pending ones, and give them out if a border follows it."""
    border = _border(atom, line_start=state.line_start)
    line_start = "\n" in atom.gap
    if not state.pending and not _fits(atom.word, count, limit):
        *pieces, tail = _pieces(atom.word, count, limit)
        cuts.extend(pieces)
        state = replace(state, began=True)
        atom = replace(atom, word=tail)
    pending = (*state.pending, atom)
    cut_now = border == "sentence" or (border == "clause" and not state.began)
    heard = border is not None and count(_joined(pending)) > 0
    if cut_now and heard:
        cuts.append(_joined(pending))
        return replace(state, pending=(), clause_end=0, began=True, line_start=line_start)
    clause_end = len(pending) if heard else state.clause_end
    return replace(state, pending=pending, clause_end=clause_end, line_start=line_start)


def _fits(text: str, count: Count, limit: int) -> bool:
    return len(text) <= _MAX_CUT_CHARACTERS and count(text) <= limit


def _joined(atoms: tuple[Atom, ...]) -> str:
    return "".join(atom.word + atom.gap for atom in atoms).rstrip()


def _pieces(word: str, count: Count, limit: int) -> list[str]:
    """Halve a word, where possible beside a character that is no letter or digit, until every piece fits."""
    if len(word) == 1 or _fits(word, count, limit):
        return [word]
    middle = len(word) // 2
    places = [at for at in range(1, len(word)) if not word[at - 1].isalnum()]
    place = min(places, key=lambda at: (abs(at - middle), at), default=middle)
    return _pieces(word[:place], count, limit) + _pieces(word[place:], count, limit)


def _border(atom: Atom, *, line_start: bool) -> str | None:
    """What ends with this atom: "sentence", "clause" or None."""
    core = atom.word.rstrip(_CLOSERS)
    if "\n" in atom.gap:
        return "sentence"
    if not core:
        return None
    if core[-1] in _CLAUSE_ENDS:
        return "clause" if len(core) > 1 or core in "—–" else None
    if core[-1] in _STOPS or core.endswith("..."):
        return "clause" if atom.following.islower() else "sentence"
    if core[-1] == "." and not (line_start and _LIST_NUMBER.fullmatch(core.lstrip(_OPENERS))):
        return _after_full_stop(core.lstrip(_OPENERS), atom.following)
    return None


def _after_full_stop(core: str, following: str) -> str | None:
    if following.islower() or _INITIALS.fullmatch(core):
        return None
    name = core[:-1].lower()
    if name in _ENDING_ABBREVIATIONS and following.isupper():
        return "sentence"
    return None if name in _ABBREVIATIONS else "sentence"
