"""Recognises the words with which pages label exercises, solutions, answers and hints, and a site's own short texts.

A label is a whole block ("Show Solution", "Q12", "Exercise 3.") or the beginning of one ("Answer: 7", "Q12. Compute
3+4"). At a beginning it is set off by emphasis, a colon, a full stop or a number. page_labels.py decides what a label
means in its context (a key at the page's end, a list that is merely numbered).

The words: English with the phrases around them, other languages by their nouns. Accents may be missing, as on old pages
("Losung", "Solucion"). Other words of a language around the noun ("Lösung anzeigen", "Ver solución") are a short list
of verbs for showing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from stages.extract_web.blocks import Block


class Part(StrEnum):
    """The part that follows a label."""

    PROBLEM = "problem"
    SOLUTION = "solution"
    ANSWER = "answer"
    ASIDE = "aside"
    """Hints, discussion, ratings: belong to the exercise, but to none of the three parts."""
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
    end: int | None = None
    """Where the part ends, if the page's markup shows it."""
    rule: str = "words"
    """The evidence for it: words, number (a run of them), markup, or none."""


_ROMAN = r"(?=[ivx]|l[ivx]|c[ivxl]{2})c?(?:x[cl]|l?x{0,3})(?:i[xv]|v?i{0,3})"
"""Up to 189; "Exercise C" counts in letters, and a "CV" is not a number."""
NUMBER = rf"(?P<number>[A-Z]?\d{{1,6}}(?:[.\-]\d{{1,6}})*[a-z]?|{_ROMAN})"
_SMALL = NUMBER.replace("[A-Z]", "[a-z]")
"""A number in a lower-case text: patterns that ignore case take three times as long."""
ANSWER_NOUNS = (
    r"antwort(?:en)?|ergebnis(?:se)?|r[eé]ponses?|r[eé]sultat|respuestas?|resultado|rispost[ae]|risultato|respostas?"
    r"|antwoord(?:en)?|odpowied[zź]|ответы?|答案?|答え"
)
ASIDE_NOUNS = r"hinweis|tipp|indice|astuce|pista|suggerimento|dica|подсказка"
# German and Dutch put the verb for showing after the noun: "Lösung anzeigen", "Antwoord tonen".
CLOSER = r"(?:\s+(?:(?:an|ein|aus)?zeigen|(?:ein|aus)blenden|ansehen|tonen|bekijken))?"
_ARTICLE = r"(?:the|my|a|an|your|la|le|les|el|las|los|il|het|eine)"
_SHOW = (
    r"(?:show/hide|show|see|view|reveal|display|hide|check|open|get|toggle|unlock|expand|read|unhide|uncover|peek\s+at"
    r"|voir|afficher|montrer|ver|mostrar|mostra|vedi|toon|bekijk|показать)"
)
OPENER = (
    r"(?:(?:spoiler|hidden)\s*[:–-]?\s*)?"
    r"(?:(?:click|tap|press|hover)\s+(?:here\s+)?(?:to|for)\s+)?"
    rf"(?:{_SHOW}\s+(?:me\s+)?)?"
    rf"(?:(?:{_ARTICLE}|full|worked|worked-out|detailed|sample|suggested|model|step-by-step|official|best|accepted"
    r"|top|final|correct|right|expected|our|(?:author|teacher|instructor)['’]?s|short|complete|expert|verified|possible|proposed|example|guided|quick|brief|video)\s+){0,3}"
)
PROBLEM_NOUNS = (
    r"aufgabe|(?:ü|ue|u)bung(?:saufgabe)?|beispiel(?:aufgabe)?|frage|exercice|probl[eè]me|ejercicio|problema|ejemplo"
    r"|pregunta|esercizio|esempio|domanda|exerc[ií]cio|exemplo|quest[aã]o|pergunta|opgave|oefening|vraag|zadanie"
    r"|przyk[lł]ad|задача|упражнение|пример|вопрос"
    r"|例题|例題|例|习题|習題|练习|練習|问题|問題|题目|題目"
)
SOLUTION_NOUNS = (
    r"(?:muster)?l(?:ö|oe|o)sung(?:en|sweg|svorschlag)?|rechenweg|erkl(?:ä|ae|a)rung|corrig[eé]s?|r[eé]solution"
    r"|explication|soluci[oó]n(?:es)?|resoluci[oó]n|explicaci[oó]n|soluzion[ei]|svolgimento|spiegazione"
    r"|solu[cç](?:ão|ao|ões|oes)|resolu[cç][aã]o|explica[cç][aã]o|oplossing(?:en)?|uitwerking(?:en)?"
    r"|rozwi[aą]zanie|решени[ея]|解答?|解析|解法|解説|解说"
)
_WORDS = {
    Part.PROBLEM: r"(?:(?:(?:worked|practice|sample|review|solved|homework|test|exam|quiz|weekly|daily|monthly|your"
    r"|the)\s+)?"
    r"(?:(?:problem|puzzle|question|challenge)\s+of\s+the\s+(?:day|week|month|year)|exercises?|problem|question|example|practice|task|quiz|puzzle|challenge|checkpoint|self-?check|your\s+turn"
    # These words title sections of a text as often as exercises, so only a number after them makes a label.
    r"|(?:activity|drill|warm-?up|investigation|exploration|item)(?=[\s.#]*(?:no\.?\s*)?\d)"
    r"|check\s+your\s+(?:understanding|knowledge)|(?:concept|quick|knowledge)\s+check|test\s+yourself"
    rf"|(?:you\s+|now\s+)?try\s+it(?:\s+(?:yourself|now))?|{PROBLEM_NOUNS})(?:\s+(?:statement|text))?"
    # `que` is a word of French and Spanish, and `qn` an abbreviation: both need a number.
    r"|prob|ques|que(?=[\s.]*\d)|qn(?=[\s.]*\d)|ex|q(?:\.?\s?no(?=\W{0,3}\d))?)",
    Part.SOLUTION: OPENER
    + r"(?:(?:solution|answer)s?\s*(?:and|&|/|with|\+)\s*(?:explanation|solution|answer|working|steps|reasoning)s?"
    r"|mark(?:ing)?\s*scheme(?:\s+(?:solutions?|answers?))?|(?:general\s+|overall\s+)?feedback|solutions?|sol['’]?n|sol|workings?|working\s+out|worked\s+out"
    r"|explanation|steps|walk-?through|proof|derivation|reasoning|step[\s-]by[\s-]step"
    r"|how\s+to\s+(?:solve|do|find|answer|work\s+out)\s+(?:it|this)|here['’]?s\s+(?:how|why)(?:\s+to\s+do\s+it)?"
    r"|(?:let['’]?s|how\s+we)\s+(?:solved?|did|do|worked?|work|got|found)\s+(?:it|this|them|there)(?:\s+out)?"
    # A forum has responses too. Only a prepared one, such as a "model response", is a solution.
    rf"|(?<=model\s)response|(?<=sample\s)response|(?<=suggested\s)response|(?<=possible\s)response|{SOLUTION_NOUNS})"
    rf"{CLOSER}",
    Part.ANSWER: OPENER + rf"(?:answers?|ans|result|answer\s+key|{ANSWER_NOUNS}){CLOSER}",
    Part.ASIDE: r"(?:(?:(?:show|see|view|get|need|want)\s+)?(?:an?\s+|me\s+a\s+)?hints?(?:\s+please)?\??"
    r"|(?:(?:correct|also|first)\s+)?(?:solvers?|solved\s+by)|clues?|nudge|tips?|discussion|comments?|rating|difficulty|topics?|tags?"
    rf"|source|remarks?|notes?|strategy|{ASIDE_NOUNS})",
}
"""Part -> the words that label it, without number and signs."""
_BEFORE_NUMBER = r"\s*(?:no\.?\s*|number\s*|[#№]\s*)?"
_NUMBERED = dict.fromkeys(Part, _BEFORE_NUMBER) | {Part.PROBLEM: r"(?:[.-](?=\s?\d))?" + _BEFORE_NUMBER}
"""Text between a label and its number. After "Solution." a number is the result."""
# Text that sites put after a label: "of 20", "by ann", "(12 votes)", "[3 points]".
_TAIL = r"(?:\s+of\s+\d{1,4})?(?:\s+(?:by|from)\s+[\w .@-]{1,40})?(?:\s*[(\[][^()\[\]]{0,40}[)\]]){0,2}"
_WHOLE = {
    part: re.compile(
        (
            rf"(?:{words})(?::(?=\s\d))?{_NUMBERED[part]}(?:{_SMALL})?(?:/\d{{1,3}})?{_TAIL}"
            if part is Part.PROBLEM
            else rf"(?:{words}){_NUMBERED[part]}(?:{_SMALL})?{_TAIL}"
        )
        + r"\s*[.:：)\]>▼▾▸+–—-]*\s*"
    )
    for part, words in _WORDS.items()
}
PLURAL_PROBLEMS = (
    r"exercises|problems|questions|examples|(?:übungs)?aufgaben|übungen|exercices|probl[eè]mes|ejercicios|problemas"
    r"|preguntas|esercizi|domande|exerc[ií]cios|perguntas|opgaven|oefeningen|задачи|упражнения"
)
_SEVERAL = re.compile(rf"(?:[\w-]+\s+)?(?:{PLURAL_PROBLEMS})\b", re.IGNORECASE)
_PREFIX = {
    part: re.compile(
        rf"(?:{words}){_NUMBERED[part]}(?:{_SMALL}{_TAIL if part is Part.PROBLEM else ''}\s*(?:[:：)\]–—-]|\.(?!\d))"
        r"|[:：)]|\.(?=\s)|\s[–—-](?=\s))\s*"
    )
    for part, words in _WORDS.items()
}
_KINDS = "exercise|problem|question|example|task|puzzle|challenge|drill|activity|quiz|practice|investigation|item|q"
_OF_AN_EXERCISE = re.compile(
    rf"(?:(?:full|worked|detailed)\s+)?(?P<word>answer|solution)s?\s+(?:to|for|of)\s+(?:the\s+)?"
    rf"(?:(?:(?:weekly|daily|monthly)\s+)?(?:{_KINDS})(?:\s+of\s+the\s+(?:day|week|month|year))?)?"
    rf"\s*#?{_SMALL}?\s*[.:]*"
)
HIDES = re.compile(r"\W*(?:hide|close|collapse)\b", re.IGNORECASE)
# Anchors that documentation generators append (¶, §), check marks, arrows and pointing hands of buttons.
_DECORATION = " `¶§#[]()✔✓✅☑★☆⭐▶►▷▼▽▾▸»›>+*•·👉💡🔽⬇→↓—–-"
_LETTER_A = re.compile(rf"A(?:{NUMBER}\s*[.:)–—-]?|\s*:)\s*")
"""One letter is a label only as `A:` or `A12.`: "a", "a." and "A)" are choices and parts of exercises."""
# "A:" labels an answer, unless the next line or block begins with "B:". Then it is a choice of a quiz.
_FIRST_OPTION = re.compile(r"\W*A\s*[:：]")
_SECOND_OPTION = re.compile(r"\W*B\s*[:：]")
_OPTIONS_IN_LINE = re.compile(r"\W*A\s*[:：].*?(?:^|[\s,;)|])B\s*[:：]", re.DOTALL)
# Books mark a hard exercise by a star after the number.
_BARE_NUMBER = re.compile(r"[(\[]?(?P<number>\d{1,4}(?:[.-]\d{1,3}){0,2})[.):\]]*(?:\s*(?:\*+|★|\$\\star\$))?")
_FIRST_LETTERS = re.compile(r"[^\w$\\]{0,3}[^\W_]")
_DOTTED = re.compile(r"[A-Z]?[\d.]*\.\d+\Z")
# Longer blocks are not tried: a label is short, and every pattern costs time on every block.
MAX_LABEL_CHARACTERS = 80
MAX_PREFIX_CHARACTERS = 250


def find_label(block: Block) -> Label | None:
    """Returns the label that the block is or begins with, or None.

    A bare number counts only as a heading, a term or an emphasised beginning, because paragraphs, cells and the
    steps of a solution begin with numbers too.
    """
    if block.kind in ("table", "rule") or not _FIRST_LETTERS.match(block.text):
        return None
    leading = None
    if block.lead and len(block.lead) <= 60 and len(block.lead) < len(block.text):
        leading = _whole_label(block.lead) or _bare_number(block.lead)
    if leading:
        leading = replace(leading, rest=block.text[len(block.lead) :].lstrip(" .:)-–—\n"))
        if leading.part in (Part.SOLUTION, Part.ANSWER) and not leading.number:
            return leading  # in "**Answer** 38" the number is the result
    label = _whole_label(block.text) or leading
    if label:
        return label
    if block.kind in ("heading", "term") or block.lead == block.text:
        bare = _bare_number(block.text)
        if bare:
            return bare
    return prefix_label(block.text)


def _whole_label(text: str) -> Label | None:
    if not text or len(text) > MAX_LABEL_CHARACTERS:
        return None
    letter = _LETTER_A.fullmatch(text)
    if letter:
        return Label(Part.ANSWER, "", letter["number"] or "")
    # The patterns would take these as words of an exercise, but alone they have too many other meanings.
    if text in ("Q", "q", "Ex", "ex"):
        return None
    # The whole text first, because brackets may belong to the label: "Answer (12 votes)".
    for form in (text, text.strip(_DECORATION)) if text[-1] in _DECORATION or text[0] in _DECORATION else (text,):
        label = _worded_label(form)
        if label:
            return label
    return None


def _worded_label(text: str) -> Label | None:
    small = _lowered(text)
    named = _OF_AN_EXERCISE.fullmatch(small)
    if named:
        return Label(Part(named["word"]), "", _number(text, named))
    for part, pattern in _WHOLE.items():
        found = pattern.fullmatch(small)
        if found:
            number = _number(text, found)
            # "Exercises 2.1" titles the exercises of section 2.1, "Exercise 2.1" is one of them.
            is_section = part is Part.PROBLEM and _DOTTED.match(number) and _SEVERAL.match(text)
            return Label(part, "", "" if is_section else number)
    return None


def _lowered(text: str) -> str:
    """Returns the text in lower case, with every character at its place."""
    small = text.lower()
    # `İ` has two characters in lower case. The places of a match would not be those of the original text.
    return small if len(small) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)


def _number(text: str, found: re.Match[str]) -> str:
    start, end = found.span("number")
    return text[start:end] if start >= 0 else ""


def prefix_label(text: str) -> Label | None:
    """Returns the worded label that the text begins with, if text follows it."""
    letter = _LETTER_A.match(text)
    if letter and letter[0].rstrip()[-1] in ".:)" and letter.end() < len(text):
        return Label(Part.ANSWER, text[letter.end() :], letter["number"] or "")
    small = _lowered(text[:MAX_PREFIX_CHARACTERS])
    for part, pattern in _PREFIX.items():
        found = pattern.match(small)
        if found and found.end() < len(text):
            rest = text[found.end() :]
            number = _number(text, found)
            return Label(part, rest, number)
    return None


def _bare_number(text: str) -> Label | None:
    found = _BARE_NUMBER.fullmatch(text.strip())
    return Label(Part.PROBLEM, "", found["number"]) if found else None


def is_first_option(text: str, following: Sequence[str]) -> bool:
    """True for the choice or point `A: ...` of a list: `B: ...` is in the same block or begins one soon after."""
    if not _FIRST_OPTION.match(text):
        return False
    return bool(_OPTIONS_IN_LINE.match(text)) or any(map(_SECOND_OPTION.match, following))


def labelled_part(text: str) -> Part | None:
    """Returns the label of a text that consists only of it."""
    label = _whole_label(text)
    return label.part if label else None


def is_problem_title(text: str) -> bool:
    """True for "Exercise 2", "Exercise 2: Sums" and the like."""
    label = _whole_label(text) or prefix_label(text)
    return label is not None and label.part is Part.PROBLEM


KEYS = (
    r"(?:answers|solutions|(?:answer|solution)\s+key|key|mark(?:ing)?\s*scheme|l(?:ö|oe)sungen|antworten|corrig[eé]s|r[eé]ponses"
    r"|soluciones|respuestas|soluzioni|risposte|solu[cç][oõ]es|respostas|oplossingen|antwoorden|ответы)"
)
FURNITURE = re.compile(
    r"(?:copyright|©|all rights reserved|(?:this work is )?licen[sc]ed under|[\s*_~•·=.—–-]{3,}$)", re.IGNORECASE
)
MAX_FURNITURE_CHARACTERS = 200
# The pointers ("see the back of the book") come from two books whose solutions are elsewhere. The list of pointers
# was written on 48 of their pages.
_PLACEHOLDER = re.compile(
    r"(?:this|the) (?:problem|exercise|question|section|article)\b.{0,20}"
    r"\b(?:needs|has no|lacks|does not (?:yet )?have)\b.{0,40}\b(?:solutions?|answers?)\b"
    r"|no (?:solutions?|answers?)\b.{0,30}\b(?:yet|available|provided|posted|submitted)\b"
    r"|(?:the )?(?:solutions?|answers?)\b.{0,20}\b(?:coming|to be (?:added|posted|written|announced)"
    r"|not (?:yet )?(?:available|provided|posted|written)|will be (?:added|posted|available))\b"
    r"|coming soon\b|(?:tba|tbd|to ?do|n/a|removed)\W*$"
    r"|(?:(?:pdf|html|video|show|hide|view|open|here|link|click(?: here)?|download|youtube)(?:\b\W*|$)){1,4}$"
    r"|(?:(?:please )?(?:log|sign) ?in\b|subscribe\b|register\b|upgrade\b).{0,80}$"
    r"|(?:(?:see|is|are|on|at|in|refer to|turn to|given|found) ){1,3}(?:the )?(?:back of\b|end of\b|next page"
    r"|p(?:age|\.|p\.)? ?\d|appendix|answer key|solutions? (?:manual|section|page)|chapter \d|section \d)[^=$]{0,40}$",
    re.IGNORECASE,
)
_STROKES = frozenset(" -–—_.…*[]()")
# A longer text works something out, even where it begins with such words.
MAX_PLACEHOLDER_CHARACTERS = 160


def is_furniture(text: str) -> bool:
    """True for a short text that sites put around their content: its author, lines of strokes."""
    return len(text) <= MAX_FURNITURE_CHARACTERS and bool(FURNITURE.match(text))


def is_placeholder(text: str) -> bool:
    """True for a placeholder of a solution that is not yet written."""
    if len(text) > MAX_PLACEHOLDER_CHARACTERS:
        return False
    return bool(_PLACEHOLDER.match(text.lstrip(" -–—[(*"))) or (bool(text) and _STROKES.issuperset(text))
