"""Recognises the words with which pages label exercises, solutions, answers and hints.

A label is either a whole block ("Show Solution", "Q12", "Exercise 3.") or the beginning of one, set off by emphasis,
a colon, a full stop or a number ("Answer: 7", "Q12. Compute 3+4"). What a label means in its surroundings (a key at
the page's end, a list that is merely numbered) is decided in page_labels.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from stages.extract_web.labels.blocks import Block
from stages.extract_web.labels.label_words import KEYS, NUMBER, PLURAL_PROBLEMS, WORDS


class Part(StrEnum):
    """What follows a label."""

    PROBLEM = "problem"
    SOLUTION = "solution"
    ANSWER = "answer"
    ASIDE = "aside"
    """Hints, discussion, ratings: belongs to the exercise and to none of the three."""
    BOUNDARY = "boundary"
    """Belongs to no exercise: instructions for several, the heading of a key."""


@dataclass(frozen=True, slots=True)
class Label:
    """A recognised label."""

    part: Part
    rest: str
    """Text of the block after the label; empty when the label is the whole block."""
    number: str
    """The exercise's number as written, empty when there is none."""
    is_weak: bool = False
    """True for `A.`, which is an answer only after a `Q.` and else a choice."""
    end: int | None = None
    """Where the part ends, when the page's markup says so."""
    rule: str = "words"
    """What it was recognised by: words, number (a run of them), markup, or none."""


_SMALL = NUMBER.replace("[A-Z]", "[a-z]")
"""A number in a lower-case text: patterns that ignore case take three times as long."""
_WORDS = {Part(part): words for part, words in WORDS.items()}
_BEFORE_NUMBER = r"\s*(?:no\.?\s*|number\s*|[#№]\s*)?"
_NUMBERED = dict.fromkeys(Part, _BEFORE_NUMBER) | {Part.PROBLEM: r"(?:[.-](?=\s?\d))?" + _BEFORE_NUMBER}
"""What may stand between a label and its number. After "Solution." a number is what is found."""
_TAIL = r"(?:\s+of\s+\d{1,4})?(?:\s+(?:by|from)\s+[\w .@-]{1,40})?(?:\s*[(\[][^()\[\]]{0,40}[)\]]){0,2}"
_ABOUT = (
    r"(?:\s?[-–—·|,:]?\s?(?:easy|medium|hard|difficult|moderate|challenging|basic|intermediate|advanced|optional"
    r"|[★☆⭐]{1,5}|\d{1,3}(?:\.\d)?\s?(?:points?|pts?|marks?|min(?:utes?)?))(?!\w)){0,3}"
)
"""What a site says about an exercise beside its number."""
_EXAM = r"(?-i:[A-Z])[\w.&]*[\s,/-]+"
"""A word of an exam's name: "CBSE", "IIT-"."""
_ABOUT_FIRST = re.compile(
    rf"[(\[]{_ABOUT}[)\]][\s.:]*(?=\S)"
    rf"|(?:\[(?:{_EXAM}){{0,4}}|\((?:{_EXAM}){{1,4}})(?:19|20)\d\d(?:[\s,;/-]+[a-z]+){{0,2}}[)\]][\s.:]+(?=\S)",
    re.IGNORECASE,
)
"""Points, difficulty, or the exam that an exercise was set in: "[2014]", "(CBSE 2015)"."""
_WHOLE = {
    part: re.compile(
        (
            rf"(?:{words})(?::(?=\s\d))?{_NUMBERED[part]}(?:{_SMALL})?(?:/\d{{1,3}})?{_TAIL}{_ABOUT}"
            if part is Part.PROBLEM
            else rf"(?:{words}){_NUMBERED[part]}(?:{_SMALL})?{_TAIL}"
        )
        + r"\s*[.:：)\]>▼▾▸+–—-]*\s*"
    )
    for part, words in _WORDS.items()
}
_NUMBER_FIRST = re.compile(
    rf"[(\[]?(?P<number>\d{{1,3}}(?:\.\d{{1,3}}){{0,2}})[.):\]]*\s+(?!{PLURAL_PROBLEMS})(?:{WORDS['problem']})\s*[.:)]*"
)
"""`3. Exercise`."""
_SECTION = re.compile(r"(?:[A-Z](?:\.\d{1,3}){1,3}|\d{1,3}(?:\.\d{1,3}){1,3}|\d{1,3}(?=[.):]))[.):]?\s+")
"""The number of a section; "2 Answers" counts."""
_GROUP = re.compile(
    rf"(?:[\w'’&-]+\s+){{0,3}}(?:{PLURAL_PROBLEMS}|{KEYS})(?:\s+(?:and|with|for|to|of|in|on|from)\s.{{1,60}})?\W*",
    re.IGNORECASE,
)
"""What a numbered heading over several exercises or over their answers says after its number."""
_SEVERAL = re.compile(rf"(?:[\w-]+\s+)?(?:{PLURAL_PROBLEMS})\b", re.IGNORECASE)
_PREFIX = {
    part: re.compile(
        rf"(?:{words}){_NUMBERED[part]}(?:{_SMALL}{_TAIL if part is Part.PROBLEM else ''}\s*(?:[:：)\]–—-]|\.(?!\d))"
        r"|[:：)]|\.(?=\s)|\s[–—-](?=\s))\s*"
    )
    for part, words in _WORDS.items()
}
_NUMBERED_CAPITALS = re.compile(
    rf"(?:(?:EX(?:ERCISE|AMPLE)?|PROB(?:LEM)?|QUESTION|Ex\.|Prob\.|Ques\.|Q\.)\.?\s?#?(?P<sure>)|(?:Problem|Exercise|Q)\s?#?)"
    rf"{NUMBER}\s+(?(sure)(?=\S)|(?=[A-Z($\\!\[]))"
)
"""`EX. 12 Compute`: an abbreviation or capitals set off a number that no sign follows."""
_KINDS = "exercise|problem|question|example|task|puzzle|challenge|drill|activity|quiz|practice|investigation|item|q"
_OF_AN_EXERCISE = re.compile(
    rf"(?:(?:full|worked|detailed)\s+)?(?P<word>answer|solution)s?\s+(?:to|for|of)\s+(?:the\s+)?"
    rf"(?:(?:(?:weekly|daily|monthly)\s+)?(?:{_KINDS})(?:\s+of\s+the\s+(?:day|week|month|year))?)?"
    rf"\s*#?{_SMALL}?\s*[.:]*"
)
_EXERCISE_AND_PART = re.compile(
    rf"(?:{_KINDS}|ex)\.?\s*#?{_SMALL}\s*[-:.,–—]*\s*\(?(?P<word>answer|solution)s?\)?"
    r"\s*[.:]*"
)
_PLACE = re.compile(
    r"(?:(?:chapter|section|unit|lesson|module|part|set|week|homework|assignment|worksheet|paper|test|exam)\s+#?[\w.]{1,8}"
    r"\s*[,:;–—-]\s*){1,3}",
    re.IGNORECASE,
)
"""Where an exercise stands, before its own label in a heading: "Chapter 3, Problem 12"."""
_EDIT_LINK = re.compile(r"\s+[\[(]?\s*(?:edit(?:\s+source)?|permalink)\s*[\])]?\s*$", re.IGNORECASE)
"""What software puts behind a heading."""
_COUNT = re.compile(
    r"\d{1,4}\s+(?:answers?|solutions?|repl(?:y|ies)|responses?|comments?)\W*"
    r"|(?:answers?|solutions?|replies|responses?|comments?)\s*[:(]\s*\d{1,4}\W*"
    r"|no\s+(?:answers|replies|responses)\s+yet\W*",
    re.IGNORECASE,
)
"""A heading over a thread's posts; as a paragraph "2 solutions" is an answer."""
_TOGGLE = re.compile(
    r"(?:click|tap|press)(?:\s+here)?(?:\s+(?:to|for)\s+(?:reveal|expand|show|see|view|check|more|open)"
    r"(?:\s+(?:it|more|(?:the\s+)?hidden\s+(?:text|content|part)))?)?|(?:show\s+)?hidden\s+(?:text|content)"
    r"|reveal|expand|show\s+me(?:\s+how)?|show\s*/\s*hide|spoiler|(?:check|show|see|view)\s+(?:your|the|my)\s+work(?:ing)?"
    r"|how\s+it'?s\s+done|flip(?:\s+card)?",
    re.IGNORECASE,
)
"""What opens a hidden part without naming it."""
HIDES = re.compile(r"\W*(?:hide|close|collapse)\b", re.IGNORECASE)
_DECORATION = " ¶§#[]()✔✓✅☑★☆⭐▶►▷▼▽▾▸»›>+*•·👉💡🔽⬇→↓—–-"
_LETTER_A = re.compile(rf"A(?:{NUMBER}\s*[.:)–—-]?|\s*:)\s*")
"""One letter is a label only as `A:` or `A12.`: "a", "a." and "A)" are choices and parts of exercises."""
_WEAK_A = re.compile(r"A[.)]?\s*")
_LINE_A = re.compile(r"A[.)]\s+(?=\S)")
_LINE_B = re.compile(r"B[.)]\s+\S")
_LINE_Q = re.compile(r"q(?:ue(?:s(?:tion)?)?|n)?(?:\b|\d)", re.IGNORECASE)
_BARE_NUMBER = re.compile(
    r"[(\[]?(?P<number>\d{1,4}(?:[.-]\d{1,3}){0,2})[.):\]]*(?:\s*(?:\*+|★|\$\\star\$))?"
)
_FIRST_LETTERS = re.compile(r"[^\w$\\]{0,3}[^\W_]")
_ICON = re.compile(r"(?:[←-⇿⌀-⏿■-◿☀-➿⬀-⯿\ue000-\uf8ff\ufe0f\U0001f000-\U0001faff]+\s*)+(?=[\w(\[#])")
_DOTTED = re.compile(r"[A-Z]?[\d.]*\.\d+\Z")
_BEGIN_NUMBERS = frozenset("([0123456789")
MAX_LABEL_CHARACTERS = 80
MAX_PREFIX_CHARACTERS = 250


def find_label(block: Block) -> Label | None:
    """The label that the block is or begins with, or None.

    A bare number counts only as a heading, a term or an emphasised beginning, because paragraphs, cells and the
    steps of a solution begin with numbers too.
    """
    if block.kind in ("table", "rule") or not _FIRST_LETTERS.match(block.text):
        return None
    block = without_icon(block)
    text = block.text
    if block.kind == "heading":
        text = _EDIT_LINK.sub("", text[place.end() :] if (place := _PLACE.match(text)) else text)
        section = _SECTION.match(text)
        if section and _GROUP.fullmatch(text, section.end()):
            return _whole_label(text[section.end() :])
        if section and (label := _after_number(text, section)):
            return label
    return _first_line_label(block, text) or _other_label(block, text)


def _first_line_label(block: Block, text: str) -> Label | None:
    """The label that is the block's first line or emphasised beginning, or that stands with all else in brackets."""
    first, _, others = text.partition("\n")
    whole = _whole_label(first) if others and first == block.lead else None
    if whole:
        return replace(whole, rest=others)
    if len(block.lead) < len(text) and block.lead[-1:] in (".", ":"):
        leading = _whole_label(block.lead)  # of "**Sol.** 38" the number is what was found
        if leading and leading.part in (Part.SOLUTION, Part.ANSWER) and not leading.number:
            return replace(leading, rest=block.text[len(block.lead) :].lstrip(" .:)-–—\n"))
    if text[:1] in ("[", "(") and text[-1] in ")]":
        inner = prefix_label(text[1:-1])
        return inner if inner and inner.part in (Part.SOLUTION, Part.ANSWER) else None
    return None


def _other_label(block: Block, text: str) -> Label | None:
    whole = _whole_label(text)
    if whole:
        return whole
    if block.kind == "heading" and _COUNT.fullmatch(block.text):
        return Label(Part.ASIDE, "", "")
    if block.kind == "toggle" and _TOGGLE.fullmatch(block.text.strip(_DECORATION + ".:")):
        return Label(Part.SOLUTION, "", "")
    if block.lead and len(block.lead) <= 60 and len(block.lead) < len(block.text):
        leading = _whole_label(block.lead) or _bare_number(block.lead) or _weak_letter(block.lead)
        if leading:
            rest = block.text[len(block.lead) :].lstrip(" .:)-–—\n")
            rest = _without_about(rest) if leading.part is Part.PROBLEM else rest
            return Label(leading.part, rest, leading.number, leading.is_weak)
    if block.kind in ("heading", "term") or block.lead == block.text:
        bare = _bare_number(block.text) or _weak_letter(block.text)
        if bare:
            return bare
    return prefix_label(block.text)


def without_icon(block: Block) -> Block:
    """The block without the pictures before its first letter."""
    icon = None if block.text[:1].isascii() else _ICON.match(block.text)
    if not icon:
        return block
    lead = block.lead[icon.end() :] if len(block.lead) > icon.end() else ""
    return replace(block, text=block.text[icon.end() :], lead=lead)


def _after_number(title: str, section: re.Match[str]) -> Label | None:
    """The label that is all of a numbered heading: `3.2 Example`, `2. Solution`. Numbers of sections are none of
    solutions."""
    label = _whole_label(title[section.end() :])
    if label is None or label.number:
        return None
    number = section[0].strip(" .):")
    return replace(label, number="" if label.part is not Part.PROBLEM and _DOTTED.match(number) else number)


def _whole_label(text: str) -> Label | None:
    if not text or len(text) > MAX_LABEL_CHARACTERS:
        return None
    letter = _LETTER_A.fullmatch(text)
    if letter:
        return Label(Part.ANSWER, "", letter["number"] or "")
    if text in ("Q", "q", "Ex", "ex"):
        return None
    for form in (
        (text, text.strip(_DECORATION)) if text[-1] in _DECORATION or text[0] in _DECORATION else (text,)
    ):
        label = _worded_label(form)
        if label:
            return label
    return None


def _worded_label(text: str) -> Label | None:
    small = _lowered(text)
    named = _OF_AN_EXERCISE.fullmatch(small) or _EXERCISE_AND_PART.fullmatch(small)
    if named:
        return Label(Part(named["word"]), "", _number(text, named))
    for part, pattern in _WHOLE.items():
        found = pattern.fullmatch(small)
        if found:
            number = _number(text, found)
            is_section = part is Part.PROBLEM and _DOTTED.match(number) and _SEVERAL.match(text)
            return Label(part, "", "" if is_section else number)
    first = _NUMBER_FIRST.fullmatch(small) if small[:1] in _BEGIN_NUMBERS else None
    return Label(Part.PROBLEM, "", first["number"]) if first else None


def _lowered(text: str) -> str:
    """The text in lower case, every character at its place."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)


def _number(text: str, found: re.Match[str]) -> str:
    start, end = found.span("number")
    return text[start:end] if start >= 0 else ""


def prefix_label(text: str) -> Label | None:
    """The worded label that the text begins with, something after it."""
    letter = _LETTER_A.match(text)
    if letter and letter[0].rstrip()[-1] in ".:)" and letter.end() < len(text):
        return Label(Part.ANSWER, text[letter.end() :], letter["number"] or "")
    capitals = _NUMBERED_CAPITALS.match(text)
    if capitals:
        return Label(Part.PROBLEM, _without_about(text[capitals.end() :]), capitals["number"])
    small = _lowered(text[:MAX_PREFIX_CHARACTERS])
    for part, pattern in _PREFIX.items():
        found = pattern.match(small)
        if found and found.end() < len(text):
            rest = text[found.end() :]
            number = _number(text, found)
            return Label(part, _without_about(rest) if part is Part.PROBLEM and number else rest, number)
    return None


def _without_about(rest: str) -> str:
    about = _ABOUT_FIRST.match(rest)
    return rest[about.end() :] if about else rest


def _bare_number(text: str) -> Label | None:
    found = _BARE_NUMBER.fullmatch(text.strip())
    return Label(Part.PROBLEM, "", found["number"]) if found else None


def _weak_letter(text: str) -> Label | None:
    return Label(Part.ANSWER, "", "", True) if _WEAK_A.fullmatch(text) else None


def answer_after_letter(line: str, following: str) -> str | None:
    """What stands after `A.` at a line's beginning, where the following line is no choice B; else None."""
    found = _LINE_A.match(line)
    return line[found.end() :] if found and not _LINE_B.match(following) else None


def is_question(text: str) -> bool:
    """True for a text that begins with the letter or word for a question, which an `A.` may answer."""
    return bool(_LINE_Q.match(text.lstrip(" *#(["))) and prefix_label(text) is not None


def is_whole_label(text: str) -> bool:
    """True for a text that is nothing but a label."""
    return bool(text) and _whole_label(text) is not None


def is_toggle_label(text: str) -> bool:
    """True for the words of a link or button that opens a solution, an answer or a hint."""
    label = _whole_label(text) if text else None
    if label:
        return label.part is not Part.PROBLEM
    return bool(_TOGGLE.fullmatch(text.strip(_DECORATION + ".:")))


def is_worded_label(text: str) -> bool:
    """True for a problem, solution or answer label that could name a column ("Question"), not for "A" or "12"."""
    label = _whole_label(text) if text else None
    return label is not None and label.part is not Part.ASIDE and len(text) > 2


def is_solution_label(text: str) -> bool:
    """True for a text that labels a solution or an answer and nothing else."""
    label = _whole_label(text) if text else None
    return label is not None and label.part in (Part.SOLUTION, Part.ANSWER)
