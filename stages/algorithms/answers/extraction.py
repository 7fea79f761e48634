r"""Finds the final answer in a response: the last `\boxed{}`, a marker such as `####` or `Answer:`, or the text itself.

Order of precedence:
1. The last box. If it is unclosed, the response was cut off and there is no answer.
2. The last marker.
3. Without box and marker: a short text itself, as a bare answer, or the last sentence of a long one.
Callers that must not reward a guess check `Extraction.is_marked`.

Deviations from what graders commonly do:
1. A box does not count when a later box is unclosed: the model was about to give another answer.
2. Boxes side by side ("\boxed{2} and \boxed{3}") are one answer, a list. Boxes with prose between them are not.
3. "Final answer: X" after the last box takes precedence over it when X reads as mathematics.
4. Text that a reader does not see is ignored: a thought, closed or not, HTML comments, and lines that `%` makes
   comments. A box in fenced code counts if there is no other. A closed thought without text after it counts as the
   whole response.
5. A box that its sentence denies ("it cannot be") or asks about, or that the next words retract, is no answer. Nor is
   one after a box with another value, if it is not ordinary visible text.

Responses are hostile input. Texts are cut to a maximum length before any pattern is applied. Every repetition in a
pattern for raw text is bounded or cannot overlap with its neighbours.

Read `extract_answer` first, then `_extract_boxed` and `_extract_marked`. Comments next to the patterns explain them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stages.algorithms.answers.normalisation import closing_brace

MAX_ANSWER_CHARACTERS = 20_000
"""Longer answers are unparsed. It allows an integer of 20,000 digits, and bounds everything that takes linear time."""
_TAIL_CHARACTERS = 20_000
"""Number of characters at the end of a response that are searched for a marker."""
_MAX_BARE_CHARACTERS = 300
"""A text without box or marker counts as a bare answer up to this length, or if it has no space, like a long integer.
Of a longer text the last sentence is used."""
_MAX_BOXES = 12
"""Number of boxes, from the end, that are read: enough for a list of answers, and a bound for a text full of boxes."""
_MAX_GAP_CHARACTERS = 60
"""Boxes further apart than this are separate statements."""

_MARKERS = (
    # GSM8K's `####`; `answer:`, `answer =`, `the answer is:`; `Ans. :`.
    r"####|\banswer(?:\*\*)?\s{0,2}(?::|=|\bis\b)\s{0,2}:?|\bans\.?\s?[:=]"
    # `The correct option is C`.
    r"|\b(?:correct|right|final)\s(?:choice|option)\s{0,2}(?::|\bis\b)"
    # A heading on a separate line: `### Answer`, `**Final Answer**`; the answer follows below.
    r"|^[#*_ ]{0,8}(?:(?:the|my)\s)?(?:(?:final|correct)\s)?answer[*_ ]{0,4}$"
    # The same in languages of Latin script, whose verb may follow: `La réponse finale est 42`.
    r"|\b(?:réponse|respuesta|antwort|resposta|risposta|antwoord|svar(?:et)?|odpowiedź|cevap|jawaban|đáp án|ответ)"
    r"(?:\s(?:finale?|correcte?a?|akhir))?\s{0,2}(?:[:=—]|\b(?:est|es|ist|lautet|is|adalah|to|é|è|är|là)\b)\s{0,2}:?"
)
_OTHER_MARKERS = (
    r"|答案\s?(?:[:：]|就?[是为為](?:[:：])?)|答え\s?(?:は|[:：])|(?:정답|답)\s?(?:은|는|[:：])"
    # Hindi puts the verb last, so the word for answer alone is a marker: `उत्तर 42 है`.
    r"|उत्तर\s{0,2}(?:[:：]|है(?=\s))?"
    r"|(?:الجواب|الإجابة)(?:\s(?:النهائي|النهائية|الصحيح|الصحيحة))?\s{0,2}(?:[:：=]|هو|هي)\s{0,2}:?"
)
# Two patterns, because the one with other scripts is slower, and most responses are ASCII.
_MARKER = re.compile(_MARKERS, re.IGNORECASE | re.MULTILINE)
_ANY_MARKER = re.compile(_MARKERS + _OTHER_MARKERS, re.IGNORECASE | re.MULTILINE)
"""For the languages in which reasoning models answer; the second also has scripts that ASCII text cannot contain."""
_ENGLISH_STEMS = ("####", "answer", "ans.", "ans:", "ans=", "ans ", "choice", "option")
_STEMS = (*_ENGLISH_STEMS, "antwo", "sposta", "respuesta", "svar", "cevap", "jawaban")
_ALL_STEMS = (*_STEMS, "réponse", "odpowiedź", "đáp án", "ответ", "答", "답", "उत्तर", "الجواب", "الإجابة")
"""Every marker contains one of these: finding the last one is fast, matching the pattern is not."""
# The last stem is found first; the marker that contains it begins at most this many characters earlier.
_LONGEST_MARKER = 60
_WORDS_BEHIND = re.compile(r"[0-9$})\]]\s{1,3}[^\W\d_]{2,20}\s{1,3}[^\W\d_]{2,20}")
"""After a marker of another language, two words after a number may change its value: `18 divisé par deux`."""
_ANOTHER_ANSWER = re.compile(
    r"\b(?:wrong|incorrect|false|invalid|previous|preceding|earlier|intermediate|tentative|estimated|approximate|assumed)"
    r"\s{1,3}\Z",
    re.IGNORECASE,
)
"""Before a marker: `the earlier answer is` is no marker."""
_STRONG_MARKER = re.compile(
    r"\bfinal\s{1,3}answer(?:\*\*)?\s{0,2}(?::|\bis\b)\s{0,2}:?"
    r"|^[*_# ]{0,8}(?:correct )?answer[*_ ]{0,4}:(?=[*_ ]{0,4}\(?[A-J]\)?[*_. ]{0,4}$)",
    re.IGNORECASE | re.MULTILINE,
)
"""After a box: a conclusion that is named as one, or a choice on a separate line."""
# Minerva's few-shot prompt ends answers with `I hope it is correct.`; others are followed by chat special tokens.
_AFTERTHOUGHT = re.compile(r"I hope it is correct.*|<\|.*|</s>.*", re.DOTALL)
# `**72**.` and `**72.**`: the markers of bold text end with the answer.
_EMPHASIS_END = re.compile(r"\*{1,3}[.,;!]?\Z")
# A full stop counts only before whitespace: 12.5 has none. Chinese and Hindi have other signs, without whitespace.
_SENTENCE_END = re.compile(r"\.(?=\s)|[。।]")
# Verbs that end a sentence in Hindi, Japanese and Korean: `192です`, `42 है`.
_CLOSING_COPULA = re.compile(r"(?:\s(?:है|हैं)|です|である|입니다|이다)\Z")
_ALTOGETHER = re.compile(
    r"(?<=[0-9$})\]]),? (?:in total|in all|altogether|overall|obviously|clearly|of course|as required)(?=,|\Z)"
)
"""After a value: words that do not change it."""
_ENDLESS = re.compile(r"(\.[0-9]{1,60}) ?(?:\.\.\.|\\l?dots(?![a-z])|\\cdots(?![a-z]))")
"""The dots of 0.333... are not full stops."""
# Allowed between two boxes of one list, besides commas: spaces, brackets, text commands.
_SPACING = re.compile(r"\\(?:quad|qquad|text|textbf|mbox|[,;:! \[\]()])|[\s$.{}()]")
# `\boxed{35} ++++ \boxed{4}`: a line drawn with signs; one `+` joins the boxes to a sum, which is not a list.
_DRAWN_RULE = re.compile(r"([-+*_=~.#])\1{2,}")
_LIST_GAP = re.compile(r"[,;&]|\b(?:and|or)\b")
_OR = re.compile(r"\bor\b")
# A letter of `equivalence`'s choices, possibly inside a text command.
_CHOICE = re.compile(r"(?:\\[a-z]+ ?\{)?\(?[A-J]\)?\}?")
_NEW_STATEMENT = re.compile(
    r"\b(?:not?|wait|but|actually|instead|rather|however|sorry|hmm|oops|so|then|thus|hence|therefore|is|are|gives?|get|"
    r"total|final|answer|correct|correction|corrected|mistake|error|wrong|mean|meant|scratch|fix|should|better|revised|"
    r"again|let|forgot|reflection|recheck\w{0,3}|checking)\b|[!?:\u2014\u2192~]|\.\s+[A-Z]|\\(?:rightarrow|to|implies)(?![a-z])",
    re.IGNORECASE,
)
"""Shows that the next box is a correction or a conclusion, not another item of a list."""
Markers = tuple[str, str]
"""The texts that open and close a thought."""
THOUGHT_MARKERS: Markers = ("<think>", "</think>")
# A line that LaTeX would not print. Bounded by `^ ?`: a percent sign inside a line is a percent sign.
_COMMENT_LINE = re.compile(r"^ ?%.*$", re.MULTILINE)
# `It cannot be \boxed{42}`, `we rule out \boxed{5}`, `x \ne \boxed{5}`. Only filler may be in between, so `not 41 but
# \boxed{42}` denies nothing.
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:not|never|cannot|can't|isn't|wasn't|aren't)(?: (?:be|equal|to|the|answer|is|just|really)){0,4}"
    r"|\b(?:rul(?:e|es|ed|ing) out|(?:exclude|reject|discard|eliminate)s?d?)(?: (?:the|answer|value|option)){0,3}"
    r"|\\neq?|≠)[\s$\\(\[:*]{0,9}\Z",
    re.IGNORECASE,
)
# After a box that, or the word for it, is the subject: `is not the answer`. `It is impossible for a sum to ...` and `is
# not divisible by 5` take nothing back, so the predicate is listed in full.
_TAKEN_BACK = re.compile(
    r"\A[\s$\\)\].*]{0,9}(?:is|was) (?:not|never) (?:the|an?|my|our) (?:\w+ )?(?:answer|solution)"
    r"|(?:\A[\s$\\)\].*]{0,9}(?:,? which)?|(?:\A|[.!?:;,\u2014]|\n)[\s$\\)\]*]{0,9}"
    r"(?:(?:but|hmm+|wait|oh|no|so|however|actually|sorry|oops),? ){0,3}"
    r"(?:that|this|it|(?:the|my|this|that) (?:answer|result)))"
    r"(?:(?: ?\b(?:is|was|are|seems|looks|must be|can(?:no|')t be)|'s) (?:wrong|incorrect|false|invalid|impossible"
    r"|a mistake|an error|(?:not|never) (?:right|correct|possible|valid|true))(?!\s+(?:for|to|that|since|because)\b)"
    r"| ?\b(?:isn't|wasn't) (?:the|right|correct)| can(?:no|')t be(?:[.!]| (?:right|correct|true|valid|the answer))"
    r"| should (?:have been|be) [\s$\\(:*]{0,5}[-0-9\\])"
    r"|\bactually,? no\b|\bscratch that\b|\bI was wrong\b|\bI made (?:a mistake|an error)\b",
    re.IGNORECASE,
)
# In characters: no shorter text retracts an answer.
_SHORTEST_DENIAL = 8
_NEXT_WORDS = 160
"""Characters after a box that are searched for a retraction."""
# A question: `\boxed{42}? No.`; a correction that ends the response: `Correction: 43.`, `so the answer is 45`.
_QUESTION = re.compile(r"[\s$\\)\]}*]{0,8}\?")
_CORRECTED = re.compile(
    r"(?:^(?!answer\b)[A-Za-z]{3,20} ?: ?|\banswer (?:is|=) ?:? ?)[\\$(]{0,2}"
    r"(-?[0-9][0-9.,/]{0,30}(?<![.,]))[\\$)]{0,2}[.!]?\s*\Z",
    re.MULTILINE | re.IGNORECASE,
)
# What may hide a box after another one: `_is_hidden`.
_HIDING_CHARACTERS = 2_000
_NO_FORMULA = r" ?\{(?!align|equation|gather|split|array|cases|center|multline|enumerate|itemize|[bpv]?matrix)"
_BLOCK = re.compile(
    rf"\\begin{_NO_FORMULA}|<[a-zA-Z][^<>]{{0,200}}(?<!/)>|\\if[a-z]+"
    rf"|(?P<close>\\end{_NO_FORMULA}|</[a-zA-Z]|\\fi(?![a-z]))"
)
_COMMENTED = re.compile(r"(?<!\\)%|\\(?:verb|lstinline|mintinline)|^\s*\[[^\]]{0,40}\]:|\\(?:text)?color(?![a-z])")
_BRACE = re.compile(
    r"(?<!\\)(?:(?:\\(?P<command>[a-zA-Z]+)(?:\[[^\]]{0,40}\]){0,3}(?:\{[^{}]{0,40}\})?\s?)?\{|(?P<close>\}))"
)
_COMMAND_END = re.compile(r"(?<=\\)[a-zA-Z]+(?=\s*\Z)")
# fmt: off
_SHOWING = frozenset([
    "text", "textbf", "textit", "textrm", "mathbf", "mathrm", "boldsymbol", "underline", "boxed", "frac", "sqrt", "bf",
    "quad", "qquad", "implies", "Rightarrow", "rightarrow", "Longrightarrow", "to", "therefore", "approx", "equiv",
    "displaystyle", "left", "large", "Large", "LARGE", "huge", "Huge", "le", "ge", "cdot", "times", "pm",
])
# fmt: on
"""Commands whose argument is shown as it is, and those that may stand directly before a box."""
_TEXT_GROUP = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|operatorname)\s?\{[^{}]*\}")
# Three letters or more between spaces: shorter runs may be variables.
_WORD = re.compile(r"(?<!\S)[a-zA-ZÀ-ɏ]{3,}(?=[\s.,;:!?)]|\Z)")
OTHER_SCRIPT = re.compile("[\u0400-\u04ff\u0620-\u064a\u0904-\u0939]{2}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Cyrillic, Arabic and Devanagari words; one character of Chinese, Japanese or Korean counts as a word."""
# Markdown's `~~5~~`; it is none with a space inside, or after a tilde of LaTeX.
_STRUCK_OUT = re.compile(r"(?<![\w\\~])~~(?=[^\s~])[^~\n]{1,200}(?<!\s)~~(?![\w~])")


@dataclass(frozen=True)
class Extraction:
    """A final answer and how it was found."""

    text: str | None
    """The answer as written; None if there is none."""
    rule: str
    """`tag`, `box`, `boxes`, `marker`, `bare` or `last_sentence`; without an answer the reason: `empty`,
    `unclosed_box`, `answer_too_long`."""

    @property
    def is_marked(self) -> bool:
        """True if the response itself marks its answer."""
        return self.is_delimited or self.rule == "marker"

    @property
    def is_delimited(self) -> bool:
        """True if the response also marks where its answer ends."""
        return self.rule in ("tag", "box", "boxes")


def extract_answer(
    response: str, max_bare_characters: int = _MAX_BARE_CHARACTERS, thought_markers: Markers = THOUGHT_MARKERS
) -> Extraction:
    """Returns the final answer of `response`, a whole response or a bare answer. Takes linear time in its length."""
    visible = _visible(response, thought_markers)
    # Only thoughts and comments, truncated or not: the model has not answered yet.
    if visible is not response and not visible.strip() and response.strip():
        return Extraction(None, "unfinished_thought" if any(one in response for one in thought_markers) else "empty")
    # The dots of 0.333... become one character, because the sentence would otherwise end inside the number.
    conclusion = _ENDLESS.sub("\\1…", visible) if "..." in visible or "dots" in visible else visible
    # A box outside fenced code comes first: code that prints `\boxed{91}` is no answer if there is another box.
    delimited = _extract_delimited(_outside_fences(conclusion)) if "```" in conclusion else None
    delimited = delimited or _extract_delimited(conclusion)
    if delimited is not None:
        return delimited
    tail = conclusion[-_TAIL_CHARACTERS:].rstrip()
    last_line = tail[tail.rfind("\n") + 1 :]
    # GSM8K-like prompts end in `A: 4`. A single A elsewhere is a choice, so it is not in `_MARKERS`.
    if last_line.startswith("A:"):
        tail = f"Answer:{last_line[2:]}"
    marked = _extract_marked(tail, _any_marker(tail))
    if marked is not None:
        return marked
    rest = _without_afterthought(tail).strip()
    if not rest:
        return Extraction(None, "empty")
    # An integer of 5,000 digits is a bare answer; 5,000 characters of prose are not.
    is_one_word = len(rest.split(maxsplit=1)) == 1 and len(conclusion) <= MAX_ANSWER_CHARACTERS
    if len(conclusion) <= max_bare_characters or is_one_word:
        return Extraction(rest, "bare")
    return Extraction(_last_sentence(rest), "last_sentence")


def extract_gold(gold: str) -> Extraction:
    """Returns the final answer of a trusted gold answer or worked solution; a box may lack its closing brace."""
    # A gold answer may have any length up to the maximum; `sentences` handles prose around it.
    extracted = extract_answer(gold, max_bare_characters=MAX_ANSWER_CHARACTERS)
    if extracted.rule != "unclosed_box":
        return extracted
    rest = gold[_last_box(gold) :].partition("{")[2].strip()
    return Extraction(rest, "box") if 0 < len(rest) <= MAX_ANSWER_CHARACTERS else extracted


def is_prose(text: str) -> bool:
    r"""Returns True if `text` reads as a sentence.

    It does if it has, outside `\text{}`, two separate words of three letters or more, or one word in a script that
    formulas do not use.
    """
    words = _TEXT_GROUP.sub(" ", text)
    return len(_WORD.findall(words)) >= 2 or (not words.isascii() and OTHER_SCRIPT.search(words) is not None)


def _extract_delimited(text: str) -> Extraction | None:
    return _extract_tagged(text) or _extract_boxed(text)


def _visible(response: str, thought_markers: Markers) -> str:
    """Returns the response without its thoughts and comments."""
    text = _STRUCK_OUT.sub("", response) if "~~" in response else response
    opening, closing = thought_markers
    if opening in text or closing in text:
        # Models may begin a response inside a thought, with the opening tag in the prompt: then all text up to the last
        # closing tag is thought.
        before, _, after = text.rpartition(closing)
        # If there is an opening tag, text before it is visible and may contain an answer.
        kept = _without_spans(before, opening, closing) if opening in before else ""
        text = _without_spans(kept + after, opening, closing)
    if "<!--" in text:
        text = _without_spans(text, "<!--", "-->")
    return _COMMENT_LINE.sub("", text) if "\n%" in text or "\n %" in text or text[:1] == "%" else text


def _without_spans(text: str, opening: str, closing: str) -> str:
    """Returns `text` without the spans from `opening` to the next `closing`, or to the end."""
    kept, at = [], 0
    # No regular expression: with a million open tags its time would be quadratic.
    while (start := text.find(opening, at)) >= 0:
        kept.append(text[at:start])
        end = text.find(closing, start)
        at = len(text) if end < 0 else end + len(closing)
    return "".join([*kept, text[at:]])


def _outside_fences(text: str) -> str:
    """Returns `text` without fenced code, or all of it if a fence is not closed."""
    # An odd number of pieces means that each fence is closed; every second piece is code.
    pieces = text.split("```")
    return "\n".join(pieces[::2]) if len(pieces) % 2 else text


def _extract_tagged(text: str) -> Extraction | None:
    """Extracts from the last closed `<answer>` tag; a box in it takes precedence over the rest."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    # Tags that are far apart contain a response, not an answer.
    if start < 0 or end - start > _TAIL_CHARACTERS:
        return None
    content = text[start + len("<answer>") : end].strip()
    boxed = _extract_boxed(content) or _extract_marked(content, _any_marker(content))
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
    # `\boxed{255} is the interest. Final Answer: $10,455$`: a later conclusion counts, unless it is prose.
    final = _extract_marked(text[end : end + _TAIL_CHARACTERS], _STRONG_MARKER)
    if final is not None and final.text and any(map(str.isalnum, final.text)) and not is_prose(final.text):
        return final
    run, gaps = [content], ""
    # From the last box backwards as long as the gap continues a list: `\boxed{2}$, $\boxed{3}$ or $\boxed{5}`.
    for earlier_begin, earlier_end, earlier in reversed(boxes[:-1]):
        gap = text[earlier_end:begin]
        if not _is_list_gap(gap):
            break
        run.insert(0, earlier)
        gaps, begin = gaps + gap, earlier_begin
    if _is_denied(text, begin, end, content):
        return Extraction(None, "denied_answer")
    _, last_end, last = boxes[-1 - len(run)] if len(boxes) > len(run) else boxes[-1]
    if last.strip() != run[0].strip() and _is_hidden(text[max(last_end, begin - _HIDING_CHARACTERS) : begin]):
        return Extraction(None, "hidden_answer")
    # `\boxed{840}. Let me check. \boxed{840}` is one answer.
    distinct = list(dict.fromkeys(part.strip() for part in run))
    # `\boxed{A} or \boxed{C}` names alternatives. Between values `or` makes a list, as for the roots of an equation.
    are_alternatives = _OR.search(gaps) is not None and all(map(_CHOICE.fullmatch, distinct))
    answer = (" or " if are_alternatives else ", ").join(distinct)
    if not answer:
        return Extraction(None, "empty")
    return Extraction(answer, "box" if len(distinct) == 1 else "boxes")


def _is_denied(text: str, begin: int, end: int, content: str) -> bool:
    """True for a box that its sentence denies or asks about, or that the following text takes back or corrects."""
    following = text[end : end + _NEXT_WORDS]
    if _DENIED_BEFORE.search(text, max(0, begin - _MAX_GAP_CHARACTERS), begin) or _QUESTION.match(following):
        return True
    # Nearly all boxes end their response, but for a bracket and a full stop.
    if len(following) < _SHORTEST_DENIAL:
        return False
    corrected = _CORRECTED.search(text, max(end, len(text) - _NEXT_WORDS))
    return _TAKEN_BACK.search(following) is not None or (corrected is not None and corrected[1] != content.strip())


def _is_hidden(before: str) -> bool:
    """True where a reader may not see what follows `before`, the text since the last box with another value.

    That is inside an argument of a command that is no style, an environment that is no formula, a tag, a conditional,
    a colour, inline code, a link's definition or a comment.
    """
    line = before[before.rfind("\n") + 1 :]
    if line.count("`") % 2 or _COMMENTED.search(line) or any(_left_open(before, _BLOCK)):
        return True
    command = _COMMAND_END.search(before)
    opened = [match["command"] for match in _left_open(before, _BRACE)] + [command and command[0]]
    return any(name is not None and name not in _SHOWING for name in opened)


def _left_open(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Returns the matches that no later match of the group `close` closes."""
    opened: list[re.Match[str]] = []
    for match in pattern.finditer(text):
        if match["close"] is None:
            opened.append(match)
        elif opened:
            opened.pop()
    return opened


def _last_box(text: str, end: int | None = None) -> int:
    """Returns where the last box before `end` begins; -1 if there is none."""
    return max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))


def _last_boxes(text: str) -> list[tuple[int, int, str]]:
    """Returns the last `_MAX_BOXES` outermost boxes as (begin, end, content); empty if the last is unclosed."""
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
        # Inside the previous box: `\boxed{x = \boxed{3}}` is one box.
        if boxes and start < boxes[-1][1]:
            continue
        content, end = _box_content(text, start)
        if content is not None:
            boxes.append((start, end, content))
        # The last box is unclosed, so the earlier ones do not count either.
        elif start == starts[-1]:
            return []
    return boxes


def _box_content(text: str, start: int) -> tuple[str | None, int]:
    r"""Returns content and end of the box at `start`; (None, ...) if it never closes. `\boxed 5` has the next word."""
    position = start + (6 if text.startswith("\\boxed", start) else 5)
    while position < len(text) and text[position] in " \t":
        position += 1
    if position >= len(text):
        return None, position
    if text[position] != "{":
        word = re.compile(r"[^\s$]{1,100}").match(text, position)
        return (word.group().rstrip(".,"), word.end()) if word else (None, position)
    limit = min(len(text), position + MAX_ANSWER_CHARACTERS + 2)
    closing = closing_brace(text, position, limit)
    if closing >= 0:
        return text[position + 1 : closing], closing + 1
    # Longer than any answer; the caller says `answer_too_long`.
    if limit < len(text):
        return text[position + 1 : limit], limit
    return None, limit


def _is_list_gap(gap: str) -> bool:
    """Returns True if the gap makes two boxes one list: it has a comma, `and` or `or`, or only layout."""
    if len(gap) > _MAX_GAP_CHARACTERS or "\n\n" in gap or _NEW_STATEMENT.search(gap):
        return False
    return _LIST_GAP.search(gap) is not None or not _DRAWN_RULE.sub("", _SPACING.sub("", gap)).strip("\\")


def _extract_marked(tail: str, pattern: re.Pattern[str]) -> Extraction | None:
    lower = tail.lower()
    # Finding the last stem takes one pass; the pattern then runs only on the end of the text.
    last = max(map(lower.rfind, _STEMS if lower.isascii() else _ALL_STEMS))
    if last < 0:
        return None
    # The last stem may be no marker (`choices are many`): then the whole tail is searched.
    marker = _last_match(tail, pattern, max(0, last - _LONGEST_MARKER)) or _last_match(tail, pattern, 0)
    if marker is None:
        return None
    rest = _without_afterthought(tail[marker.end() :]).strip(" \t\n*:")
    # Display mathematics spans several lines; any other answer ends with its line or sentence.
    closing = {"\\[": "\\]", "$$": "$$"}.get(rest[:2])
    if closing and closing in rest[2:]:
        answer = rest[2 : rest.index(closing, 2)]
    else:
        answer = _SENTENCE_END.split(rest.partition("\n")[0], maxsplit=1)[0]
    answer = _EMPHASIS_END.sub("", answer).strip(" \t*").removesuffix(".")
    answer = _CLOSING_COPULA.sub("", answer)
    answer = _ALTOGETHER.sub("", answer) if " " in answer else answer
    opening = {"\\]": "\\[", "\\)": "\\("}.get(answer[-2:])
    if opening and opening not in answer:  # the marker stands in the formula
        answer = answer[:-2].rstrip(" .")
    if not answer:
        return Extraction(None, "empty")
    is_english = any(stem in marker[0].lower() for stem in _ENGLISH_STEMS)
    # `sentences` knows the English words that change a value, but only the most common ones of other languages.
    if not is_english and _WORDS_BEHIND.search(answer):
        return Extraction(None, "sentence")
    return Extraction(answer, "marker")


def _last_match(tail: str, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(tail, start):
        # 30 characters back: enough for `approximate ` and spaces.
        if not _ANOTHER_ANSWER.search(tail, max(0, match.start() - 30), match.start()):
            last = match
    return last


def _any_marker(text: str) -> re.Pattern[str]:
    return _MARKER if text.isascii() else _ANY_MARKER


def _last_sentence(text: str) -> str:
    line = text[text.rfind("\n") + 1 :].rstrip("。। ")
    return _SENTENCE_END.split(line)[-1].strip()[-_MAX_BARE_CHARACTERS:]


def _without_afterthought(text: str) -> str:
    """Removes few-shot boilerplate and special tokens after an answer."""
    return _AFTERTHOUGHT.sub("", text, count=1) if "<" in text or "I hope" in text else text
