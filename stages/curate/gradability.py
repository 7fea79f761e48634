"""Makes answers gradable and tests it: the verifier must accept the gold answer and reject a different one.

`answer_kind` returns the form of an answer, which decides how it can be graded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

from stages.algorithms.answers.extraction import is_prose
from stages.algorithms.answers.normalisation import clean, read_number
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.integer_answers import Inexact, IntegerQuestion, ask_for_integer
from stages.curate.stage import AnswerKind
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Judgement, Verifier
from stages.foundations.errors import UserError
from stages.foundations.tables import Funnel
from stages.observe.progress import progress

Row = dict[str, Any]
_ROWS_AT_ONCE = 1_000
# The opposite, where one exists, is the harder test, because wrong responses contain it.
_OPPOSITES = {"true": "False", "false": "True", "yes": "No", "no": "Yes"}
_LITERAL = re.compile(r"(?<![A-Za-z_0-9.^\\])\d+(?!\d)")
_CHOICE = re.compile(r"(?<=\A\()[A-J](?=\))|\A[A-J](?=\)|\Z)")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_LANGUAGE = re.compile(r"[A-Za-z]{4}|[a-z]{2,} [a-z]{2,}")
_NAMES = re.compile(r"[^a-z]*[A-Z][^a-z]*")
_ANY_LITERAL = re.compile(r"\d+")
_WHOLE_CHOICE = re.compile(r"\(?[A-J]\)?")
_WORDS = re.compile(r"[A-Za-z]+")


def ask_for_integers(rows: Sequence[Row]) -> tuple[list[Row], list[Row], Counter[str]]:
    """Returns all rows, rewritten if that is exact; a `transform` row for each rewritten row; and counts of the others
    by reason.

    An integer answer is kept without a reason: there is nothing to rewrite.
    """
    changed, records, left = [], [], Counter()
    for row in rows:
        question = ask_for_integer(row["answer"], row["problem"])
        if isinstance(question, IntegerQuestion):
            changed.append(_rewritten(row, question))
            records.append(_record(row, changed[-1], question))
        else:
            changed.append(row)
            left.update([question.value] if isinstance(question, Inexact) else [])
    return changed, records, left


def _rewritten(row: Row, question: IntegerQuestion) -> Row:
    conclusion = f"Hence ${question.sum_text} = \\boxed{{{question.answer}}}$."
    solution = row["solution"] and f"{row['solution']}\n\n{conclusion}"
    problem = f"{row['problem']}\n{question.request}"
    return {**row, "problem": problem, "answer": question.answer, "solution": solution}


def _record(row: Row, changed: Row, question: IntegerQuestion) -> Row:
    own = {name: row[name] for name in ("problem_id", "source")}
    before = {f"original_{name}": row[name] for name in ("problem", "answer")}
    after = {name: changed[name] for name in ("problem", "answer")}
    way_back = {"form": question.form, "parts": json.dumps(question.parts), "inverse": question.original}
    return {**own, **before, **after, **way_back}


def keep_kinds(rows: Sequence[Row], kinds: Sequence[AnswerKind], funnel: Funnel) -> list[Row]:
    """Returns rows with answers of a kind that the recipe allows for the verifier."""
    kept = []
    for row in rows:
        kind = answer_kind(row["answer"])
        if kind in kinds:
            kept.append(row)
        else:
            funnel.drop(row, "ungradable_answer", f"{kind}: {row['answer']}")
    return kept


def keep_gradable(rows: Sequence[Row], limits: VerifierParams, funnel: Funnel) -> list[Row]:
    """Returns rows for which the verifier judges the gold answer as correct and a perturbed answer as wrong.

    Dropped as `gold_not_correct`, `perturbed_not_wrong`, or `gold_undecided` if the verifier failed. UserError if it
    failed on more than its abort threshold, since the kept rows would then depend on the machine's load.
    """
    kept, failures = [], 0
    with Verifier(limits) as verifier:
        for start in progress(range(0, len(rows), _ROWS_AT_ONCE), label="gradability", unit=f"x {_ROWS_AT_ONCE} rows"):
            part = rows[start : start + _ROWS_AT_ONCE]
            # A verifier that cannot read an answer may accept any response, or none: this test detects both.
            perturbed = [perturbed_answer(row["answer"]) for row in part]
            same = verifier.judge([(row["answer"], boxed(row["answer"])) for row in part])
            other = verifier.judge([(row["answer"], boxed(text)) for row, text in zip(part, perturbed, strict=True)])
            for row, text, own, changed in zip(part, perturbed, same, other, strict=True):
                reason, detail = _objection(text, own, changed)
                failures += reason == "gold_undecided"
                if reason:
                    funnel.drop(row, reason, f"{row['answer']}: {detail}")
                else:
                    kept.append(row)
    # A few time-outs mean rows that are hard to compare; many mean a machine that is too busy.
    if failures > limits.abort_undecided_fraction * max(1, len(rows)):
        raise UserError(
            f"the verifier failed on the gold answers of {failures} of {len(rows)} problems: raise "
            f"verifier.timeout_seconds ({limits.timeout_seconds:g}) or verifier.memory_mib ({limits.memory_mib})"
        )
    return kept


def _objection(perturbed: str, own: Judgement, changed: Judgement) -> tuple[str, str]:
    # A failure of either judgement says nothing about the answer.
    if own.verdict.is_failure or changed.verdict.is_failure:
        return ("gold_undecided", f"the verifier gave {own.verdict} for itself, {changed.verdict} for {perturbed}")
    if own.verdict is not Verdict.CORRECT:
        return "gold_not_correct", f"beside itself {own.verdict} ({own.reason})"
    if changed.verdict is not Verdict.WRONG:
        return "perturbed_not_wrong", f"{perturbed} is {changed.verdict} ({changed.reason})"
    return "", ""


def boxed(answer: str) -> str:
    """Returns the answer as at the end of a response."""
    return f"\\boxed{{{answer}}}"


def perturbed_answer(answer: str) -> str:
    r"""Returns a similar, different answer: 1 is added to the first number that is not an index, exponent or decimal.

    Without a number: the next choice, the opposite word, another last letter of a name, or `1+` before an expression.
    `3` becomes `4`, `\frac{\pi}{4}` becomes `\frac{\pi}{5}`, `x_1 = 2` becomes `x_1 = 3`, `C` becomes `D`, `five`
    becomes `6`, `True` becomes `False`, `\angle ABC` becomes `\angle ABD`. A choice changes even if followed by text.
    """
    text = clean(answer)
    kind = answer_kind(answer)
    text = _CHOICE.sub(lambda found: _next_letter(found[0], "ABCDEFGHIJ"), text)
    if kind is AnswerKind.choice:
        return text
    number = read_number(text)
    # A number that is written as a word, such as "five".
    if number is not None and number.value is not None and text.isalpha():
        return str(number.value + 1)
    # A single letter is a variable, and is treated as an expression below.
    if kind is AnswerKind.word and len(text) > 1:
        return _OPPOSITES.get(text.lower(), f"not{text}")
    # An index or exponent changes only if there is no other number: `x_1 = 2` must become `x_1 = 3`.
    literal = _LITERAL.search(text) or _ANY_LITERAL.search(text)
    if literal is None:
        return _without_number(text)
    return f"{text[: literal.start()]}{_plus_one(literal[0])}{text[literal.end() :]}"


def _without_number(text: str) -> str:
    names = _COMMAND.sub(" ", text)
    if _LANGUAGE.search(names):
        return f"not {text}"
    if _NAMES.fullmatch(names):
        # Changes the last letter: in the name of an angle or a line each letter counts.
        head, last, tail = re.split(r"([A-Z])(?!.*[A-Z])", text, maxsplit=1)
        return head + _next_letter(last, ascii_uppercase) + tail
    # After the equals sign: `1+f(x)=x` would be another statement about f.
    before, sign, value = text.rpartition("=")
    return f"{before}{sign}1+{value}"


def _next_letter(letter: str, letters: str) -> str:
    return letters[(letters.index(letter) + 1) % len(letters)]


def _plus_one(digits: str) -> str:
    """Returns the next integer, without converting the digits, which may be many; `09` becomes `10`."""
    head = digits.rstrip("9")
    tail = "0" * (len(digits) - len(head))
    return f"{head[:-1]}{int(head[-1]) + 1}{tail}" if head else f"1{tail}"


def answer_kind(answer: str) -> AnswerKind | None:
    """Returns the kind of the answer, None for an empty one."""
    text = clean(answer)
    if not text.strip(" .,;:!?$"):
        return None
    # Before words, because a single letter would count as a word.
    if _WHOLE_CHOICE.fullmatch(text):
        return AnswerKind.choice
    number = read_number(text)
    if number is not None:
        is_whole = number.value is None or number.value.denominator == 1
        return AnswerKind.integer if is_whole and not number.is_percent else AnswerKind.number
    if _WORDS.fullmatch(text):
        return AnswerKind.word
    return AnswerKind.prose if is_prose(text) else AnswerKind.expression
