r"""Finds the final answer in a response: the last `\boxed{}`, a marker such as `####` or `Answer:`, or the text itself.

The order of trust: the last box (an unclosed last box means that the response was cut off, so there is no answer);
then the last marker; then, where there is neither, a short text itself, as a bare answer, or the last sentence of a
long one. Callers that must not reward a guess at what was meant ask `Extraction.is_marked`.

Deviations from what graders commonly do:
1. A box in mid-response does not survive a later unclosed one: the model was about to say something else.
2. Boxes that stand side by side ("\boxed{2} and \boxed{3}") are one answer, a list; boxes with prose between are not.
3. "Final answer: X" after the last box wins over it when X reads as mathematics.

Responses are hostile input: lengths are cut before any pattern is applied, and every repetition in a pattern that
sees raw text is bounded or cannot overlap with its neighbours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_ANSWER_CHARACTERS = 20_000
"""Longer answers are unparsed. Room for an integer of 20,000 digits, a bound for everything that is linear."""
_TAIL_CHARACTERS = 20_000
"""How far from the end of a response a marker is looked for."""
_MAX_BARE_CHARACTERS = 300
"""A text without box or marker counts as a bare answer up to this length, or when it has no space, as a long integer
has none; of another the last sentence is left."""
_MAX_BOXES = 12
"""How many boxes from the end are looked at: enough for a list of answers, a bound for a text full of boxes."""
_MAX_GAP_CHARACTERS = 60
"""Boxes further apart than this are separate statements."""

_MARKER = re.compile(
    r"####|\banswer(?:\*\*)?\s{0,2}(?::|=|\bis\b)\s{0,2}:?|\bans\.?\s?[:=]"
    r"|\b(?:correct|right|final)\s(?:choice|option)\s{0,2}(?::|\bis\b)"
    r"|^[#*_ ]{0,8}(?:(?:the|my)\s)?(?:(?:final|correct)\s)?answer[*_ ]{0,4}$"
    r"|答案\s?(?:[:：]|就?[是为為](?:[:：])?)"
    r"|\b(?:réponse|respuesta|antwort)(?:\s(?:finale?|correcte?a?))?\s{0,2}"
    r"(?::|=|\best\b|\bes\b|\bist\b|\blautet\b)\s{0,2}:?"
    r"|उत्तर\s{0,2}(?:[:：]|है(?=\s))?"
    r"|(?:الجواب|الإجابة)(?:\s(?:النهائي|النهائية|الصحيح|الصحيحة))?\s{0,2}(?:[:：=]|هو|هي)\s{0,2}:?",
    re.IGNORECASE | re.MULTILINE,
)
"""Of the languages that reasoning models answer in: English, Chinese, French, Spanish, German, Hindi and Arabic."""
_ANOTHER_ANSWER = re.compile(
    r"\b(?:wrong|incorrect|false|invalid|previous|preceding|earlier|intermediate|tentative|estimated|approximate|assumed)"
    r"\s{1,3}\Z",
    re.IGNORECASE,
)
"""Before a marker: `the earlier answer is` marks none."""
_STRONG_MARKER = re.compile(r"####|\bfinal\s{1,3}answer(?:\*\*)?\s{0,2}(?::|\bis\b)\s{0,2}:?", re.IGNORECASE)
_AFTERTHOUGHT = re.compile(r"I hope it is correct.*|<\|.*|</s>.*", re.DOTALL)
_EMPHASIS_END = re.compile(r"\*{1,3}[.,;!]?\Z")
_SENTENCE_END = re.compile(r"\.(?=\s)|[。।]")
_CLOSING_COPULA = re.compile(r"\s(?:है|हैं)\Z")
_ENDLESS = re.compile(r"(\.[0-9]{1,60}) ?(?:\.\.\.|\\l?dots(?![a-z])|\\cdots(?![a-z]))")
"""The dots of 0.333... are no full stops."""
_SPACING = re.compile(r"\\(?:quad|qquad|text|textbf|mbox|[,;:! \[\]()])|[\s$.{}()]")
_DRAWN_RULE = re.compile(r"([-+*_=~.#])\1{2,}")
_LIST_GAP = re.compile(r"[,;&]|\b(?:and|or)\b")
_NEW_STATEMENT = re.compile(
    r"\b(?:not?|wait|but|actually|instead|rather|however|sorry|hmm|oops|so|then|thus|hence|therefore|is|are|gives?|get|"
    r"total|final|answer|correct|correction|corrected|mistake|error|wrong|mean|meant|scratch|fix|should|better|revised|"
    r"again|let|forgot)\b|[!?:\u2014\u2192~]|\.\s+[A-Z]|\\(?:rightarrow|to|implies)(?![a-z])",
    re.IGNORECASE,
)
"""What makes the next box a correction or a conclusion, not one more of a list."""
_TEXT_GROUP = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|operatorname)\s?\{[^{}]*\}")
_WORD = re.compile(r"(?<!\S)[a-zA-Z]{3,}(?=[\s.,;:!?)]|\Z)")


@dataclass(frozen=True)
class Extraction:
    """A final answer and how it was found."""

    text: str | None
    """The answer as written; None when there is none."""
    rule: str
    """`tag`, `box`, `boxes`, `marker`, `bare` or `last_sentence`; without an answer the reason: `empty`,
    `unclosed_box`, `answer_too_long`."""
    context: str = ""
    """For a marker: the text from the marker on, for verifiers that read sentences."""

    @property
    def is_marked(self) -> bool:
        """True when the response itself says which part is its answer."""
        return self.is_delimited or self.rule == "marker"

    @property
    def names_itself(self) -> bool:
        """True for a sentence that may name its answer: after a marker, or all of a short response."""
        return self.rule in ("marker", "bare")

    @property
    def is_delimited(self) -> bool:
        """True when the response also says where its answer ends."""
        return self.rule in ("tag", "box", "boxes")


def extract_answer(response: str, max_bare_characters: int = _MAX_BARE_CHARACTERS) -> Extraction:
    """The final answer of `response`, which may be a whole response or a bare answer. Linear in its length."""
    conclusion = _ENDLESS.sub("\\1…", response.rpartition("</think>")[2] or response)
    tagged = _extract_tagged(conclusion)
    if tagged is not None:
        return tagged
    boxed = _extract_boxed(conclusion)
    if boxed is not None:
        return boxed
    tail = conclusion[-_TAIL_CHARACTERS:].rstrip()
    last_line = tail[tail.rfind("\n") + 1 :]
    if last_line.startswith("A:"):
        tail = f"Answer:{last_line[2:]}"
    marked = _extract_marked(tail, _MARKER)
    if marked is not None:
        return marked
    rest = _without_afterthought(tail).strip()
    if not rest:
        return Extraction(None, "empty")
    is_one_word = len(rest.split(maxsplit=1)) == 1 and len(conclusion) <= MAX_ANSWER_CHARACTERS
    if len(conclusion) <= max_bare_characters or is_one_word:
        return Extraction(rest, "bare")
    return Extraction(_last_sentence(rest), "last_sentence")


def extract_gold(gold: str) -> Extraction:
    """The final answer of a gold answer or worked solution: trusted, so of any length, and a box may lack its end."""
    found = extract_answer(gold, max_bare_characters=MAX_ANSWER_CHARACTERS)
    if found.rule != "unclosed_box":
        return found
    rest = gold[_last_box(gold) :].partition("{")[2].strip()
    return Extraction(rest, "box") if 0 < len(rest) <= MAX_ANSWER_CHARACTERS else found


def is_prose(text: str) -> bool:
    r"""True when `text` reads as a sentence: two free-standing words of three letters or more outside `\text{}`."""
    return len(_WORD.findall(_TEXT_GROUP.sub(" ", text))) >= 2


def _extract_tagged(text: str) -> Extraction | None:
    """What stands in the last `<answer>` that is closed; a box in it counts before the rest."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0 or end - start > _TAIL_CHARACTERS:
        return None
    content = text[start + len("<answer>") : end].strip()
    boxed = _extract_boxed(content) or _extract_marked(content, _MARKER)
    return boxed or (Extraction(content, "tag") if content else Extraction(None, "empty"))


def _extract_boxed(text: str) -> Extraction | None:
    if _last_box(text) < 0:
        return None
    boxes = _last_boxes(text)
    if not boxes:
        return Extraction(None, "unclosed_box")
    begin, end, content = boxes[-1]
    if len(content) > MAX_ANSWER_CHARACTERS:
        return Extraction(None, "answer_too_long")
    final = _extract_marked(text[end : end + _TAIL_CHARACTERS], _STRONG_MARKER)
    if final is not None and final.text and any(map(str.isalnum, final.text)) and not is_prose(final.text):
        return final
    run = [content]
    for earlier_begin, earlier_end, earlier in reversed(boxes[:-1]):
        if not _is_list_gap(text[earlier_end:begin]):
            break
        run.insert(0, earlier)
        begin = earlier_begin
    distinct = list(dict.fromkeys(part.strip() for part in run))
    answer = ", ".join(distinct)
    if not answer:
        return Extraction(None, "empty")
    return Extraction(answer, "box" if len(distinct) == 1 else "boxes")


def _last_box(text: str, end: int | None = None) -> int:
    """Where the last box before `end` begins; -1 without one."""
    return max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))


def _last_boxes(text: str) -> list[tuple[int, int, str]]:
    """Up to `_MAX_BOXES` outermost boxes from the end as (begin, end, content); empty when the last is unclosed."""
    starts: list[int] = []
    end = len(text)
    while len(starts) < _MAX_BOXES:
        position = _last_box(text, end)
        if position < 0:
            break
        starts.insert(0, position)
        end = position
    boxes: list[tuple[int, int, str]] = []
    for start in starts:
        if boxes and start < boxes[-1][1]:
            continue
        content, end = _box_content(text, start)
        if content is not None:
            boxes.append((start, end, content))
        elif start == starts[-1]:
            return []
    return boxes


def _box_content(text: str, start: int) -> tuple[str | None, int]:
    r"""Content and end of the box at `start`; (None, ...) when it never closes. `\boxed 5` takes the next word."""
    position = start + (6 if text.startswith("\\boxed", start) else 5)
    while position < len(text) and text[position] in " \t":
        position += 1
    if position >= len(text):
        return None, position
    if text[position] != "{":
        word = re.compile(r"[^\s$]{1,100}").match(text, position)
        return (word.group().rstrip(".,"), word.end()) if word else (None, position)
    depth, cursor = 0, position
    limit = min(len(text), position + MAX_ANSWER_CHARACTERS + 2)
    while cursor < limit:
        character = text[cursor]
        if character == "\\":
            cursor += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[position + 1 : cursor], cursor + 1
        cursor += 1
    if limit < len(text):
        return text[position + 1 : limit], limit
    return None, limit


def _is_list_gap(gap: str) -> bool:
    """True when the text between two boxes makes them one list: a comma, `and`, `or`, or nothing but layout."""
    if len(gap) > _MAX_GAP_CHARACTERS or "\n\n" in gap or _NEW_STATEMENT.search(gap):
        return False
    return _LIST_GAP.search(gap) is not None or not _DRAWN_RULE.sub("", _SPACING.sub("", gap)).strip("\\")


def _extract_marked(tail: str, pattern: re.Pattern[str]) -> Extraction | None:
    matches = (
        match
        for match in pattern.finditer(tail)
        if not _ANOTHER_ANSWER.search(tail, max(0, match.start() - 30), match.start())
    )
    found = max(matches, key=re.Match.start, default=None)
    if found is None:
        return None
    rest = _without_afterthought(tail[found.end() :]).strip(" \t\n*:")
    context = tail[found.start() :][:_MAX_BARE_CHARACTERS]
    closing = {"\\[": "\\]", "$$": "$$"}.get(rest[:2])
    if closing and closing in rest[2:]:
        answer = rest[2 : rest.index(closing, 2)]
    else:
        answer = _SENTENCE_END.split(rest.partition("\n")[0], maxsplit=1)[0]
    answer = _EMPHASIS_END.sub("", answer).strip(" \t*").removesuffix(".")
    answer = _CLOSING_COPULA.sub("", answer)
    if not answer:
        return Extraction(None, "empty")
    return Extraction(answer, "marker", context)


def _last_sentence(text: str) -> str:
    line = text[text.rfind("\n") + 1 :]
    return _SENTENCE_END.split(line)[-1].strip()[-_MAX_BARE_CHARACTERS:]


def _without_afterthought(text: str) -> str:
    """Cuts few-shot boilerplate and special tokens that follow an answer."""
    return _AFTERTHOUGHT.sub("", text, count=1)
