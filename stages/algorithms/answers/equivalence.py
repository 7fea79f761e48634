r"""Compares two final answers by their texts, exactly and in microseconds, or gives no opinion.

It decides only clear cases: the same text, two numbers, two choices, two tuples of numbers, two times of day. For
everything else `exact_verdict` returns None, and `decisions` reads the answers as mathematics.

Rules, where readings differ:
- Decimals: the precision rule of `normalisation`.
- Percent: `28\%` agrees with 28% and with 0.28. It also agrees with a bare integer 28, since problems ask "what
  percent" (the gold answers of MATH omit the sign).
- `x = 5` agrees with 5; two assignments must name the same variable.
- `(1, 2)` is ordered; items in braces are not.
- Times: `4:30 p.m.`, `16:30`, `2 PM`, `noon`, `7 in the evening`. `decisions` compares them after all other texts.
"""

from __future__ import annotations

import re

from stages.algorithms.answers.normalisation import WrittenNumber, agree_by_precision, clean, compact, read_number
from stages.algorithms.answers.verdicts import STRICT, Leniency, Verdict

# A bound for hostile lists; longer ones are left to `comparison`, which has its own bound.
_MAX_ELEMENTS = 50
# A name, with a subscript or an argument, before one equals sign: `x =`, `a_{n} =`, `f(x) =`.
_ASSIGNMENT = re.compile(
    r"(\\?[a-zA-Z]+(?: ?_ ?(?:\{[^{}]{1,20}\}|[0-9a-zA-Z]))?(?: ?\(-?[^()=+*/^-]{1,20}\))?) ?= ?([^=<>]+)"
)
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|lt|gt|approx|in)(?![a-zA-Z])")
# `B`, `(B)`, `B.`, `B: its text`; ten letters, A to J.
_CHOICE = re.compile(r"\(?([A-J])(?:\)|[.:](?= )|$)\.? ?(.*)", re.DOTALL)
_CHOICE_WORD = re.compile(r"\A(?:option|choice|answer) (?=\(?[A-J](?![A-Za-z]))", re.IGNORECASE)
# A second choice in the text after the first. `A` before a small letter is the article: `(B) A dog`. Other capitals in
# a sentence are names: `(B) the B cells and not a virus`.
_LONE = r"(?:[B-J]\b|A\b(?! [a-z]))"
_OTHER_CHOICE = re.compile(
    rf"\A(?:or\b|and\b|{_LONE})|\([A-J]\)|\b[B-J]\W*\Z"
    rf"|(?:\b(?:or|and|not|nor|no|but|than|to)|[,;/&]) ?(?:(?:option|choice|answer) )?{_LONE}"
)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
# Two letters or more: a single one may be a variable.
_PLAIN_WORDS = re.compile(r"[A-Za-z][A-Za-z ,.']*[A-Za-z]")
# `A, C`, `A and C`, `(A), (B)`; up to ten letters. Without spaces too, as `clean` leaves `A\text{or}C`.
_SEVERAL_CHOICES = re.compile(r"\(?[A-J]\)?(?:(?:,? ?(?:or|and) ?|, ?|/)\(?[A-J]\)?){1,9}")
# `(b)` and `b)`. A bare b may be a variable.
_LOWER_CHOICE = re.compile(r"\A\(?([a-j])\)(?= |\Z)")
_SEVERAL_LOWER_CHOICES = re.compile(r"\([a-j]\)(?:(?:,? ?(?:or|and) ?|, ?)\([a-j]\)){1,9}")
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+")
_GROUPED_IN_INDIA = re.compile(r"[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}")
_SIDE_BY_SIDE = re.compile(r"(?<![_0-9^])[0-9]+ [0-9]+(?![0-9/])")
"""Two numbers side by side: math-verify would add them, as it does with the parts of `1 1/2`."""
_NO_SOLUTION = re.compile(
    r"(?:there (?:is|are) )?no (?:real |such )?(?:solutions?|roots?|values?(?: of [a-z])?)(?: exists?)?|none"
    r"|no such [a-z ]{1,40}|dne|(?:(?:it|such an? [a-z]+|the [a-z ]{1,40}) )?does not exist"
    r"|(?:the )?empty set|\\(?:emptyset|varnothing)|\\\{ ?\\\}|\{ ?\}",
    re.IGNORECASE,
)
_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
Decision = tuple[Verdict, str]
"""A verdict and the rule that gave it."""


def exact_verdict(gold: str, prediction: str, allowed: Leniency = STRICT) -> Decision | None:
    """Returns verdict and reason for two bare answers, or None when the texts alone do not settle it. Never raises."""
    gold_text, prediction_text = clean(gold), clean(prediction)
    if not gold_text or not prediction_text:
        return Verdict.UNPARSED, "empty"
    # First, in any notation: texts that no rule can read may still be equal.
    if compact(gold_text) == compact(prediction_text) and not _is_split(gold_text, prediction_text):
        return Verdict.CORRECT, "same_text"
    # Before reading numbers, so that `x = 5` and 5 are two numbers here; times and dates may have a name too.
    values = without_name(gold_text, prediction_text)
    if (values != (gold_text, prediction_text) and compact(values[0]) == compact(values[1])) or (
        "{cases}" in gold_text and "&" in gold_text and _sorted_rows(values[0]) == _sorted_rows(values[1])
    ):
        return Verdict.CORRECT, "same_text"
    # A gold answer that ends in a digit is a number or an expression, and skips two patterns.
    if not gold_text[-1].isdigit() and _NO_SOLUTION.fullmatch(gold_text) and _NO_SOLUTION.fullmatch(prediction_text):
        return Verdict.CORRECT, "no_solution"
    return (
        _compare_numbers(*values, allowed)
        or _compare_words(gold_text, prediction_text)
        or _compare_choices(gold_text, prediction_text, allowed)
        or _compare_lists(gold_text, prediction_text, allowed)
    )


_CASES = re.compile(r"(.*)\\begin ?\{cases\}(.*)\\end ?\{cases\}", re.DOTALL)


def _sorted_rows(text: str) -> str:
    """Returns the text with the rows of its cases in one order."""
    cases = _CASES.fullmatch(text)
    if cases is None:
        return compact(text)
    rows = sorted(compact(row).strip(" ,") for row in cases[2].split(r"\\") if row.strip())
    return compact(cases[1]) + r"\\".join(rows)


def _is_split(gold: str, prediction: str) -> bool:
    """True for the list `4, 500` beside the number 4,500. The list `4, 500` may also be written `4,500`."""
    return ", " in prediction and _GROUPED.fullmatch(gold) is not None


def _compare_numbers(gold_value: str, value: str, allowed: Leniency) -> Decision | None:
    gold_number = read_number(gold_value)
    if gold_number is None:
        return _compare_decimal_comma(gold_value, value)
    number = read_number(value)
    if number is not None:
        return _compare_values(gold_number, number, allowed)
    if _GROUPED_IN_INDIA.fullmatch(value) and gold_number.value == int(value.replace(",", "")):
        return Verdict.CORRECT, "number"  # else it may be a list
    # `infinitely many` beside 11: words that no rule reads. They may be right (`eleven pieces`), so not wrong.
    if _PLAIN_WORDS.fullmatch(value):
        return Verdict.UNPARSED, "words_for_a_number"
    if _SIDE_BY_SIDE.search(value):
        return Verdict.UNPARSED, "numbers_side_by_side"
    return _compare_decimal_comma(value, gold_value)


def without_name(gold: str, prediction: str) -> tuple[str, str]:
    """Drops `x =`, `a_{n} =` or `f(x) =` from both cleaned answers if both name the same or one is no equation."""
    gold_named, named = _ASSIGNMENT.fullmatch(gold), _ASSIGNMENT.fullmatch(prediction)
    if gold_named and named:
        is_same = compact(gold_named.group(1)) == compact(named.group(1))
        return (gold_named.group(2), named.group(2)) if is_same else (gold, prediction)
    if gold_named and not _RELATION.search(prediction):
        return gold_named.group(2), prediction
    if named and not _RELATION.search(gold):
        return gold, named.group(2)
    return gold, prediction


def _compare_values(gold: WrittenNumber, number: WrittenNumber, allowed: Leniency) -> Decision | None:
    if gold.unit != number.unit and gold.unit and number.unit:
        return Verdict.WRONG, "units"
    # Integers of more than 4,000 digits are compared only by their digits.
    if gold.value is None or number.value is None:
        if gold.is_decimal or number.is_decimal or gold.is_percent or number.is_percent:
            return None
        return _opinion(gold.value is number.value and gold.digits == number.digits, "long_integer")
    if gold.value == number.value:
        return Verdict.CORRECT, "number"
    # After equal values, so that 0.28 and 28% have agreed already.
    if gold.is_percent != number.is_percent:
        return _compare_face_values(gold, number)
    if (gold.is_decimal or number.is_decimal) and agree_by_precision(gold, number, allowed):
        return Verdict.CORRECT, "rounding"
    return Verdict.WRONG, "number"


def _compare_face_values(gold: WrittenNumber, number: WrittenNumber) -> Decision | None:
    """True where one side has a percent sign, and the values differ when the sign is taken literally."""
    gold_face, face = (side.value * 100 if side.is_percent else side.value for side in (gold, number))
    if gold_face == face:
        # A whole percentage may leave its sign out: MATH's gold answer is 28 where the response says 28%. 0.5% may be
        # meant by 0.5 or not, so `comparison` looks at their size.
        return (Verdict.CORRECT, "percent") if face.denominator == 1 else None
    return None if gold.is_decimal or number.is_decimal else (Verdict.WRONG, "percent")


def _compare_decimal_comma(maybe_comma: str, other: str) -> Decision | None:
    """Takes `2,74` for 2.74 only where the other side is that number; otherwise it may be a list."""
    # `1,22` beside 1.22; beside 122 or a list it stays open.
    if _DECIMAL_COMMA.fullmatch(maybe_comma):
        number, other_number = read_number(maybe_comma.replace(",", ".")), read_number(other)
        if other_number is not None and other_number.is_decimal and number == other_number:
            return Verdict.CORRECT, "decimal_comma"
    return None


def _compare_words(gold: str, prediction: str) -> Decision | None:
    gold_truth, truth = _TRUTH.get(gold.lower()), _TRUTH.get(prediction.lower())
    if gold_truth is not None and truth is not None:
        return _opinion(gold_truth == truth, "truth_value")
    # Three letters or more, not all capitals: `ab` may be a product and `ABC` a triangle.
    is_word = gold.isalpha() and len(gold) > 2 and not gold.isupper()
    if is_word and gold.lower() == prediction.lower():
        return Verdict.CORRECT, "same_word"
    return None


def is_choice(gold: str) -> bool:
    """True for a gold answer that is the letter of one choice."""
    return _CHOICE.fullmatch(clean(gold)) is not None


def _compare_choices(gold: str, prediction: str, allowed: Leniency) -> Decision | None:
    gold, prediction = map(_with_capital_choices, (gold, prediction))
    gold_choice, names_several = _CHOICE.fullmatch(gold), _SEVERAL_CHOICES.fullmatch(prediction) is not None
    gold_letter, gold_text = gold_choice.groups() if gold_choice is not None else ("", "")
    # For a single choice, naming several is wrong even if the right one is among them. For several choices, `A or C` is
    # wrong too: `or` joins alternatives, a list joins parts.
    if names_several and ((gold_letter and not gold_text) or ("or" in prediction and "or" not in gold)):
        return Verdict.WRONG, "several_choices"
    # Before single choices: `A, C` would pass as the choice A with a text.
    if names_several or _SEVERAL_CHOICES.fullmatch(gold):
        letters = _letters_of(gold), _letters_of(prediction)
        if min(map(len, letters)) > 1:
            return _opinion(letters[0] == letters[1] and ("or" in gold) == ("or" in prediction), "choices")
    if gold_choice is None:
        return _compare_text_of_choice(gold, prediction, allowed)
    choice = _CHOICE.fullmatch(prediction)
    if choice is None:
        return exact_verdict(gold_text, prediction, allowed) if gold_text and not _CHOICE.fullmatch(gold_text) else None
    letter, text = choice.groups()
    # `B or (C)`: which one is meant is unclear.
    if _OTHER_CHOICE.search(text) or _OTHER_CHOICE.search(gold_text):
        return None
    # `(B) 5` is not `(B) 6`. `(B) 14` beside `(C) 14` may be the same choice in another order.
    same_text = not (text and gold_text) or compact(text) == compact(gold_text)
    if letter == gold_letter:
        return (Verdict.CORRECT, "choice") if same_text else exact_verdict(gold_text, text, allowed)
    return (Verdict.WRONG, "choice") if not (text and gold_text and same_text) else None


def _with_capital_choices(text: str) -> str:
    text = _CHOICE_WORD.sub("", text)
    if _SEVERAL_LOWER_CHOICES.fullmatch(text):
        return re.sub(r"(?<=\()[a-j](?=\))", lambda match: match[0].upper(), text)
    return _LOWER_CHOICE.sub(lambda match: f"({match[1].upper()})", text)


def _letters_of(text: str) -> set[str]:
    """Returns the choices in `A, C`, `A and C` or `AC`; empty for other texts."""
    is_run = re.fullmatch("A?B?C?D?E?F?G?H?I?J?", text) is not None
    return set(re.findall("[A-J]", text)) if is_run or _SEVERAL_CHOICES.fullmatch(text) else set()


def _compare_text_of_choice(gold: str, prediction: str, allowed: Leniency) -> Decision | None:
    """Compares `(B) 14` with the gold answer 14: an equal text is correct, a different one decides nothing."""
    choice = _CHOICE.fullmatch(prediction)
    if choice is None or not choice[2] or _CHOICE.fullmatch(choice[2]) or _OTHER_CHOICE.search(choice[2]):
        return None
    decision = exact_verdict(gold, choice[2], allowed)
    return decision if decision is not None and decision[0] is Verdict.CORRECT else None


def _compare_lists(gold: str, prediction: str, allowed: Leniency) -> Decision | None:
    gold_list, listed = _read_list(gold), _read_list(prediction)
    if gold_list is None or listed is None or gold_list[0] != listed[0]:
        return None
    gold_values, values = gold_list[1], listed[1]
    if gold_list[0] == r"\{":
        # A rounded element may agree with two elements of a set: sets with decimals go to `comparison`.
        if any(number.is_decimal for number in (*gold_values, *values)):
            return None
        same = {number.value for number in gold_values} == {number.value for number in values}
        return _opinion(same, "number_set")
    # Where order does not count, tuples that differ in this order are for `comparison`, which finds the partners.
    if len(gold_values) != len(values):
        return (Verdict.WRONG, "tuple_length") if allowed.ordered else None
    # WRONG for one element is enough; no opinion on one element means no opinion on the tuple.
    decisions = [_compare_values(first, second, allowed) for first, second in zip(gold_values, values, strict=True)]
    if any(decision is not None and decision[0] is Verdict.WRONG for decision in decisions):
        return (Verdict.WRONG, "number_tuple") if allowed.ordered else None
    return None if None in decisions else (Verdict.CORRECT, "number_tuple")


def _read_list(text: str) -> tuple[str, list[WrittenNumber]] | None:
    r"""Opening delimiter and elements of `(1, 2)`, `[1, 2]`, `[1, 2)` or `\{1, 2\}`; None unless all are numbers.

    The delimiter of a half-open pair carries its closing one. `(1,000)` is None: it may be one number or two.
    """
    opening = text[:2] if text.startswith(r"\{") else text[:1]
    closing = text[-2:] if text.endswith(r"\}") else text[-1:]
    if (opening, closing) not in {("(", ")"), ("[", "]"), ("[", ")"), ("(", "]"), (r"\{", r"\}")}:
        return None
    inner = text[len(opening) : -len(closing)]
    parts = inner.split(",")
    # `(1,000)` is read as a number between brackets, not as 1 and 000.
    if not 2 <= len(parts) <= _MAX_ELEMENTS or read_number(inner.strip()) is not None:
        return None
    numbers = [read_number(part.strip()) for part in parts]
    if any(number is None or number.value is None or number.is_percent for number in numbers):
        return None
    kind = opening if opening == r"\{" else opening + closing
    return kind, [number for number in numbers if number is not None]


def _opinion(is_equal: bool, reason: str) -> Decision:
    return (Verdict.CORRECT if is_equal else Verdict.WRONG), reason


# ------------------------------------------------------------------------------------------------ times of day
# `4:30`, `4:30:15`, `10.25 PM` (a full stop only before the half of the day), `4 o'clock`; then the half of the day as
# letters or words.
_TIME = re.compile(
    r"([01]?[0-9]|2[0-4])(?:(?::|\.(?=[0-9]{2} ?[ap]))([0-5][0-9])(?::([0-5][0-9]))?| o'clock)?"
    r" ?(?:([AaPp])(?:\.?\s?[Mm]\.{0,2})?|(noon|in the afternoon|in the evening)|(midnight|in the morning))?"
)
_NAMED_TIMES = {"noon": "12 noon", "midnight": "12 midnight"}


def compare_times(gold: str, prediction: str) -> Decision | None:
    """Decides about two times. `4:30 p.m.` agrees with 16:30. Without `a.m.` or `p.m.` it may be another
    time, or no time. None where a side is no time, or both may be ratios."""
    sides = _read_time(gold), _read_time(prediction)
    if sides[0] is None or sides[1] is None:
        return None
    (gold_time, is_gold_half_known), (time, is_half_known) = sides
    if gold_time == time:
        return Verdict.CORRECT, "time"
    # 4:30 and 2:15 may be ratios, and as ratios they agree. 4:00 is a time, since ratios to 0 do not occur.
    if not (is_gold_half_known or is_half_known) and gold.count(":") == 1 and ":00" not in gold + prediction:
        return None
    return Verdict.WRONG, "time"


def _read_time(answer: str) -> tuple[tuple[int, int, int], bool] | None:
    """Returns hour, minute and second, on a 24-hour clock if the half of the day is known, and whether it is."""
    text = clean(answer).lower()
    match = _TIME.fullmatch(_NAMED_TIMES.get(text, text))
    if match is None:
        return None
    hour, minute, second, letter, is_late, is_early = match.groups()
    half = letter or ("p" if is_late else "a" if is_early else "")
    # A bare number is not a time.
    if minute is None and not half and "o'clock" not in text:
        return None
    # 12 AM is 0 and 12 PM is 12; 24:00 is 0.
    of_day = int(hour) % 12 + 12 * (half == "p") if half else int(hour) % 24
    return (of_day, int(minute or 0), int(second or 0)), bool(half)
