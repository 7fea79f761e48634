r"""Separates a value from the unit, currency or counting word around it, and converts one unit into another.

A written-out unit that only one side has does not count (`5 miles`, `5\text{ N}`): the problem says what is measured.
It is in the table, or a word of three letters or more (`5 apples`). An abbreviation that the table lacks (`PF`) agrees
only with itself. Names of numbers, and prefixes without a unit, multiply (`5 lakh`, `5 kilo`).
A letter in the formula itself, the N of `0.64N`, is a variable like any other. Two units of different
dimensions contradict each other. Things that are counted (`5 apples`) are a dimension; the word `units` is none.

The table of units comes first, then the patterns. Read `read_quantities` and `conversion`; `_read` tries the notations
in order.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

from stages.algorithms.answers.normalisation import TEXT_COMMANDS

# Name -> dimension and size, as a multiple of the dimension's first unit. Exact fractions, so that 254/10000 m is
# exactly an inch.
_UNITS: dict[str, tuple[str, Fraction]] = {}
STERLING = "british pounds"
THINGS = "things"
_SIGNS = {r"\%": "percent", r"^\circ": "angle"}


def _define(dimension: str, **units: str) -> None:
    for factor_text, names in ((factor, names) for names, factor in units.items()):
        # Keyword arguments cannot repeat a factor or contain a blank: two underscores join names of one size.
        for name in names.split("__"):
            _UNITS[name] = (dimension, Fraction(factor_text))


_define(
    "length",
    m__meter__metre="1",
    inch__in__inche="254/10000",
    ft__foot__feet="3048/10000",
    yd__yard="9144/10000",
    mi__mile="1609344/1000",
)
_define(
    "mass",
    g__gram="1",
    lb__pound="45359237/100000",
    oz__ounce="45359237/1600000",
    ton="907184740/1000",
    tonne="1000000",
)
# Months and years are a separate dimension below: no number of days is a month.
_define("time", s__sec__second="1", min__minute="60", h__hr__hour="3600", day="86400", week="604800")
_define("calendar", month="1", year__yr="12", decade="120", century="1200", centurie="1200")
# A cup and a litre are two dimensions here: no factor converts one into the other.
_define(
    "kitchen volume", cup="1", pint="2", quart__qt="4", gallon__gal="16", tablespoon__tbsp="1/16", teaspoon__tsp="1/48"
)
_define("dollars", dollar__usd="1", cent="1/100")
# kB is a thousand bytes and kb a thousand bits: names in the table keep their case (`_singular`).
_define("information", byte="1", bit="1/8", kB="1000", MB="1000000", kb="125", Mb="125000")
_define("energy", J__joule="1", btu="1055")
_define("area", acre="1", hectare__ha="247105381/100000000")
# Dimensions with a single size. Temperatures are three: a factor alone does not turn one scale into another. The name
# of the British pounds is a constant because `conversion` lets pounds of money meet pounds of weight.
for _dimension, _names in {
    "hour of the morning": "am", "hour of the afternoon": "pm", "volume": "l L liter litre", "euros": "euro eur",
    STERLING: "gbp", "yen": "yen jpy", "rupees": "rupee inr", "yuan": "yuan rmb cny", "degrees Celsius": "celsius",
    "degrees Fahrenheit": "fahrenheit", "kelvin": "K kelvin", "force": "N newton", "electronvolts": "eV",
    "angle": "radian rad", "pressure": "Pa pascal", "voltage": "V volt", "current": "A ampere amp",
    "resistance": "ohm", "charge": "C coulomb", "capacitance": "F farad", "turns": "turn revolution",
    "amount": "mol mole", "power": "W watt", "frequency": "Hz hertz",
}.items():  # fmt: skip
    for _name in _names.split():
        _UNITS[_name] = (_dimension, Fraction(1))
_PREFIXES = {"p": -12, "n": -9, "µ": -6, "m": -3, "c": -2, "d": -1, "h": 2, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12}
_LONG_NAMES = "meter metre gram second liter litre newton joule pascal volt ampere ohm coulomb mole watt hertz farad"
_LONG_PREFIXES = {"pico": -12, "nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "hecto": 2}
_LONG_PREFIXES |= {"kilo": 3, "mega": 6, "giga": 9, "tera": 12}
# Prefixes go only before units that take them: m before s, not before ft.
for _names, _powers in (("m g s l L N J Pa V A mol W Hz F eV", _PREFIXES), (_LONG_NAMES + " byte bit", _LONG_PREFIXES)):
    for _name in _names.split():
        for _prefix, _exponent in _powers.items():
            # `pm` stays the half of the day, and `min` a minute.
            _UNITS.setdefault(_prefix + _name, (_UNITS[_name][0], _UNITS[_name][1] * Fraction(10) ** _exponent))
# Abbreviations of several words, or with a full stop inside.
_ALIASES = {
    "a.m": "am",
    "p.m": "pm",
    "mph": "mile per h",
    "mpg": "mile per gallon",
    "kph": "km per h",
    "kmh": "km per h",
    "rpm": "turn per min",
    "Nm": "N m",
    "kWh": "kW h",
}
_CURRENCIES = {"$": "dollar", r"\$": "dollar", "€": "euro", "£": "gbp", "¥": "yen", "₹": "rupee"}
# Names of numbers, and what they are abbreviated to; K is the kelvin.
_NUMBER_NAMES = {
    "10": "ten", "12": "dozen", "20": "score", "144": "gross gros", "100": "hundred", "1e3": "thousand k grand mille",
    "1e4": "myriad", "1e5": "lakh lac", "1e6": "million M MM mn mln mil mio", "1e7": "crore",
    "1e9": "billion milliard arab B G bn bil mrd mld", "1e12": "trillion T tn tril trn", "1e15": "quadrillion",
    "1e18": "quintillion",
}  # fmt: skip
_COUNTS = {name: Fraction(value) for value, names in _NUMBER_NAMES.items() for name in names.split()}
# Words beside a unit that neither count nor measure: `5 meters long`, `30 cents each`. Without this list `meter long`
# would be one unknown unit.
_LOOSE = frozenset(
    ["of", "the", "a", "an", "long", "wide", "tall", "high", "deep", "away", "apart", "old", "total", "each"]
)
# Singular words that end in s: `5 glass`, `5 radius`, `5 axis` have unknown units, not things. `12 units` agrees with
# `12 meters`, as any unknown unit does.
_NOT_COUNTED = ("ss", "us", "is", "units")
# Before or after a unit: `3 square meters`, `3 meters squared`.
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_JOINED = re.compile(rf"\\({'|'.join(_LONG_PREFIXES)}) ?\\(?=[a-z])")
"""A prefix and a unit as the commands of siunitx."""
_TEXT = re.compile(rf"\\(?:{TEXT_COMMANDS})\s?\{{([^{{}}]*)\}}")
# `5\text{ m/s}^2`, `\frac{1}{2}\,\mathrm{km}/\mathrm{h}`: a value, a unit in a text command, a power after it.
_TAIL = re.compile(
    r"(?P<body>.*[0-9)}\]!a-zA-Z]|.*\\pi)\s*"
    rf"(?P<unit>\\(?:{TEXT_COMMANDS})\s?\{{[^{{}}]*\}}"
    r"(?:\s?/\s?\\(?:text|mathrm)\s?\{[^{}]*\})?)\s*(?:\^\{?\s?(?P<power>[23])\s?\}?)?"
)
# Where the units begin in `5\,\mathrm{km\,h^{-1}}` or `5\frac{\text{m}}{\text{s}^2}`: the whole rest must be units.
# A lone \Omega counts only at the end, since it may be a variable.
_FIRST_UNIT = re.compile(r"(?:\\frac ?\{ ?|\\mu ?)?\\(?:text|textrm|mathrm|mbox)(?![a-zA-Z])|(?<=[0-9} ])\\Omega ?\Z")
_FRACTION = re.compile(r"\\frac ?\{(.*)\}\{(.*)\}")
_LAYOUT = re.compile(r"\\(?:text|textrm|mathrm|mbox)(?![a-zA-Z])|[{}~]|\\cdot(?![a-zA-Z])|·")
# One factor of `J/(mol K)` or `m s^-2`; `/` and `per` turn the sign of the exponent, a bracket keeps it turned.
_FACTOR = re.compile(r"(?P<mark>/ ?\(?|per |\))|(?P<name>[A-Za-zµ]+) ?(?:\^ ?(?P<power>-?[0-9]))?")
# A value and up to seven words; quantifiers are bounded because this runs on raw prose.
_WORDS = re.compile(
    r"(?P<body>.*?(?:[0-9)}\]%]|\\pi))(?P<gap>\s*)(?P<unit>[A-Za-z][A-Za-z]*\.?(?:(?:\s|/|-)[A-Za-z]+\.?){0,6})\s?"
    r"(?:\^\{?\s?(?P<power>[23])\s?\}?)?"
)
# `1 hour 30 minutes`, `5 ft 3 in`: two numbers with a word after each.
_COMPOUND = re.compile(
    r"\s*([0-9]{1,9}) ?([A-Za-z]{1,12})\.?,?\s+(?:and\s+)?([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,12})\.?\s*"
)
_PREFIX = re.compile(r"(?P<sign>-?)(?P<symbol>\\\$|[€£¥₹$])\s?(?P<body>[0-9.].*|\\frac.*)", re.DOTALL)
_SUFFIX = re.compile(r"(?P<body>.*[0-9)}])\s?(?P<symbol>\\\$|[€£¥₹])", re.DOTALL)
_MATHEMATICAL_WORDS = "and or pi sin cos tan log ln exp sqrt mod if for where when with is are in not to at of infty"
_MATHEMATICS = frozenset(_MATHEMATICAL_WORDS.split())
OPERATIVE_WORD = re.compile(
    r"(?<![\w])(?:"
    r"th|st|nd|rd|ish|fewer|less|mehr|weniger|lebih|kurang|fazla|depending|assuming|given|provided|supposing|or|"
    r"nor|if|unless|otherwise|else|when|whenever|where|whether|while|until|but|except|not|no|never|none|neither|"
    r"cannot|without|than|greater|larger|smaller|bigger|least|most|above|below|under|over|beyond|between|within|"
    r"from|through|almost|nearly|about|around|approximately|roughly|maybe|perhaps|possibly|probably|unknown|wrong|"
    r"incorrect|false|invalid|plus|minus|divided|multiplied|added|subtracted|doubled|tripled|halved|factorial|"
    r"twice|thrice|double|triple|half|halves|third|thirds|fourth|fourths|quarter|quarters|fifth|fifths|sixth|"
    r"sixths|seventh|sevenths|eighth|eighths|ninth|ninths|tenth|tenths|hundredth|hundredths|mod|modulo|power|root|"
    r"reciprocal|base|vs|versus|whose|who|which|see|equation|page|step|line|chapter|exercise|problem|question|part|"
    r"figure|table|lucky|guess|guesses|guessed|bound|bounds|bounded|estimate|estimates|estimated|approximation|"
    r"approximated|conjecture|conjectured|suppose|supposed|assume|assumed|tentative|tentatively|previous|preceding|"
    r"earlier|intermediate|error|opposite|inverse|negation|hopefully|likely|presumably|seems|tops|at (?:best|"
    r"worst)|so far|of (?:it|this|that|the (?:answer|value|result|number|solution))"
    r")(?![\w])",
    re.IGNORECASE,
)
"""Words beside which a value is not the answer. They compare, compute, condition, deny or refer. Or they bound,
estimate or doubt a value, place it elsewhere in the work, or turn it into another value. The classes are closed."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value and its unit."""

    body: str
    unit: str
    """In one spelling; empty where there is none."""
    dimension: str
    """The measured dimension, with a power such as `length^2`; empty where the unit is not known here."""
    factor: Fraction
    """Size of the unit, in the dimension's first unit."""
    count: Fraction
    """The factor of a counting word: 12 for dozen."""


def read_quantities(gold: str, prediction: str) -> tuple[Quantity, Quantity]:
    """Splits both texts, as `normalisation.one_spelling` returns them, into values and units. Never raises.

    A single letter is a unit only beside an answer that has a unit: `3 m` beside `3 meters`, not beside `3`.
    """
    # First without letters. Only where one side then has a unit and the other none may a letter of the other be a
    # unit.
    sides = _read(gold, False), _read(prediction, False)
    measured = [side.dimension not in ("", THINGS) for side in sides]
    if measured[0] and not sides[1].unit:
        return sides[0], _read(prediction, True)
    if measured[1] and not sides[0].unit:
        return _read(gold, True), sides[1]
    return sides


def _read(text: str, allows_letters: bool) -> Quantity:
    text = text.strip()
    prefix = _PREFIX.fullmatch(text)
    if prefix is not None:
        # `\$1.5 million`: the counting word after the amount is read separately.
        inner = _read(prefix["sign"] + prefix["body"], False)
        return _with_unit(inner.body, _CURRENCIES[prefix["symbol"]], "", inner.count)
    suffix = _SUFFIX.fullmatch(text)
    if suffix is not None:
        return _with_unit(suffix["body"], _CURRENCIES[suffix["symbol"]], "", Fraction(1))
    compound = _COMPOUND.fullmatch(" ".join(_TEXT.sub(r" \1 ", text).split()))
    if compound is not None:
        total = _total(*compound.groups())
        if total is not None:
            return total
    # Before `_TAIL`, which would take only the last text command: of `5\text{ kg}\cdot\text{m}^2` the m^2.
    start = _FIRST_UNIT.search(text) if "\\" in text else None
    rest = text[start.start() :] if start is not None and start.start() else ""
    # An unclosed brace means that the unit is inside something else: `\frac{5 \text{ m}}{2}`.
    if start is not None and rest and rest.count("{") == rest.count("}"):
        words = " ".join(_LAYOUT.sub(" ", _FRACTION.sub(r"\1/(\2)", rest)).split())
        words = words.replace(r"\mu", "µ").replace("µ ", "µ").replace(r"\Omega", "ohm")
        measure = _measure(words)
        if measure is not None:
            unit = " ".join(map(_singular, words.split()))
            return Quantity(text[: start.start()].rstrip("\\, "), unit, *measure, Fraction(1))
    tail = _TAIL.fullmatch(text)
    if tail is not None:
        words = _TEXT.sub(r" \1 ", _JOINED.sub(r" \1", tail["unit"])).replace("\\", " ")
        return _from_words(text, tail["body"], words, tail["power"])
    phrase = _WORDS.fullmatch(text)
    if phrase is not None and _is_unit_phrase(phrase["unit"], allows_letters):
        return _from_words(text, phrase["body"], phrase["unit"], phrase["power"])
    # The sign stays in the body: the tree has nodes for percent and degree, and `comparison` weighs them.
    sign = next((sign for sign in _SIGNS if text.endswith(sign)), "")
    return Quantity(text, sign, _SIGNS.get(sign, ""), Fraction(1), Fraction(1))


def _total(value: str, name: str, other: str, other_name: str) -> Quantity | None:
    """Reads `1 hour 30 minutes` in the unit of its dimension; None where the units do not fit together."""
    units = _UNITS.get(_singular(name)), _UNITS.get(_singular(other_name))
    # The larger unit comes first: `30 minutes 1 hour` is not one quantity.
    if units[0] is None or units[1] is None or units[0][0] != units[1][0] or units[0][1] <= units[1][1]:
        return None
    amount = int(value) * units[0][1] + Fraction(other) * units[1][1]
    return Quantity(f"{amount.numerator}/{amount.denominator}", "total", units[0][0], Fraction(1), Fraction(1))


def is_unit(word: str) -> bool:
    """True for the name of a unit, in singular or plural, other than `in`."""
    return word != "in" and _singular(word) in _UNITS


def _is_unit_phrase(phrase: str, allows_letters: bool) -> bool:
    """True for words: a run of letters that is not a known unit counts as a word from four letters on."""
    words = [word.strip(".") for word in phrase.replace("/", " ").replace("-", " ").split()]
    first = words[0]
    # `5 less`, `5 squared minus one`: such a word changes the value.
    if OPERATIVE_WORD.search(phrase):
        return False
    # `in` is an inch only where the other side has a unit; else it may be `x in R`.
    if any(word.lower() in _MATHEMATICS for word in words) and not (allows_letters and words == ["in"]):
        return False
    is_known = _singular(first) in _UNITS or first in _ALIASES or first.lower() in _POWERS or _count(first) > 0
    # `5 m` beside `5` may be a product with a variable, `5 m/s` hardly.
    if len(first) == 1:
        is_rate = "/" in phrase and all(_singular(word) in _UNITS for word in words)
        return is_known and (allows_letters or is_rate)
    # `5 apples` and `20 students`; three letters or capitals are more likely variables: 5ab, 5 ABC.
    return is_known or (len(first) > 3 and not first.isupper())


def _from_words(text: str, body: str, phrase: str, power: str | None) -> Quantity:
    words = [word.strip(".,()") for word in phrase.replace("/", " per ").split()]
    count, exponent, names = Fraction(1), int(power or 1), []
    for word in words:
        if _count(word):
            count *= _count(word)
        elif word.lower() in _POWERS:
            exponent = _POWERS[word.lower()]
        elif word.lower() not in _LOOSE:
            names.append(_singular(word))
    is_measured = names or count != 1
    if (
        not is_measured
        or OPERATIVE_WORD.search(phrase)
        or any(word in ("and", "&") or word.isdigit() for word in words)
    ):
        return Quantity(text, "", "", Fraction(1), Fraction(1))
    quantity = _with_unit(body, " ".join(names), f"^{exponent}" if exponent > 1 else "", count)
    last = words[-1].lower()
    is_counted = not quantity.dimension and len(last) > 3 and last.endswith("s") and not last.endswith(_NOT_COUNTED)
    return replace(quantity, dimension=THINGS) if is_counted else quantity


def _count(word: str) -> Fraction:
    """Returns the number that a word names, in the singular or the plural, or as a prefix; 0 for another word."""
    # One letter keeps its case: M is a million, m a metre.
    name = word.lower().removesuffix("s") if len(word) > 3 else word.lower() if len(word) > 2 else word
    prefix = _LONG_PREFIXES.get(name)
    return _COUNTS.get(name, Fraction(0)) if prefix is None else Fraction(10) ** prefix


def _with_unit(body: str, name: str, power: str, count: Fraction) -> Quantity:
    body = body.strip().rstrip("\\, ")
    dimension, factor = _measure(_ALIASES.get(name, name) + power) or ("", Fraction(1))
    return Quantity(body, name + power, dimension, factor, count)


def _measure(words: str) -> tuple[str, Fraction] | None:
    """Returns dimension and factor of `km`, `m s^-2`, `J/(mol kg)`; None where a part is not a unit."""
    exponents: Counter[str] = Counter()
    factor, sign, is_group, end = Fraction(1), 1, False, 0
    for match in _FACTOR.finditer(words):
        if words[end : match.start()].strip():
            return None
        end = match.end()
        if match["mark"]:
            sign, is_group = (1, False) if match["mark"] == ")" else (-1, "(" in match["mark"])
            continue
        unit = _UNITS.get(_singular(match["name"]))
        if unit is None:
            return None
        exponent = sign * int(match["power"] or 1)
        exponents[unit[0]] += exponent
        factor *= unit[1] ** exponent
        sign = sign if is_group else 1
    if words[end:].strip() or not exponents:
        return None
    names = (f"{name}^{power}" if power != 1 else name for name, power in sorted(exponents.items()) if power)
    return " ".join(names), factor


def _singular(word: str) -> str:
    # The table first: `s` and `Pa` are units as they are written.
    if word in _UNITS:
        return word
    # `Hours` is read as hour. Two letters keep their case: mW is not MW.
    lower = word.lower() if len(word) > 2 else word
    for ending in ("s", "es"):
        if lower.endswith(ending) and lower.removesuffix(ending) in _UNITS:
            return lower.removesuffix(ending)
    if word.isupper() and lower not in _UNITS:
        return word
    return lower.removesuffix("s") if len(lower) > 3 else lower


def _is_unknown_symbol(side: Quantity) -> bool:
    """True for an abbreviation that the table does not have: two Latin letters or fewer, or capitals."""
    name = side.unit.partition(" ")[0].partition("^")[0]
    return not side.dimension and name.isascii() and name.isalpha() and (len(name) < 3 or name.isupper())


def conversion(gold: Quantity, prediction: Quantity) -> Fraction | None:
    """Returns the factor for the prediction's value before it is compared with gold's; None if the units contradict."""
    counts = prediction.count / gold.count
    if gold.unit != prediction.unit and (_is_unknown_symbol(gold) or _is_unknown_symbol(prediction)):
        return None
    # `£5` beside `5 pounds`: the table knows the word as a weight.
    if {gold.dimension, prediction.dimension} == {STERLING, "mass"} and "pound" in (gold.unit, prediction.unit):
        return counts  # of money, as the other side shows
    # `20^\circ` beside `20^\circ C`: the problem says that it is a temperature.
    if {gold.dimension, prediction.dimension} in ({"angle", "degrees Celsius"}, {"angle", "degrees Fahrenheit"}):
        return counts
    # The kelvin, beside a number without a unit, may be a thousand.
    if not gold.unit and prediction.unit == "K":
        return None
    for one, other in ((gold, prediction), (prediction, gold)):
        # `30 units` are neither 30 percent nor 30 degrees.
        if one.unit == "unit" and other.dimension in _SIGNS.values():
            return None
        # `12 square units` may be square centimetres, not centimetres.
        if one.unit.startswith("unit^") and other.dimension:
            return counts if other.dimension == "length" + one.unit[4:] else None
    if not (gold.dimension and prediction.dimension):
        return counts
    return counts * prediction.factor / gold.factor if gold.dimension == prediction.dimension else None
