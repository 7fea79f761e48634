"""Benchmark problems as they occur in training data: copied, respaced, with other numbers and names, or reworded.

`leaks/reworded.jsonl` has 58 problems of GSM8K (MIT), each with a rewording. `light` ones keep the order of the story
and most of its words; `heavy` ones retell it with other names and words. Thresholds were set on those; the `_held_out`
ones were written afterwards. `leaks/latex.jsonl` has problems of MATH-500 (MIT) with formulas.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import yaml

from stages.algorithms.decontamination import Contamination, DecontaminationRules
from stages.curate.stage import CurateParams
from stages.foundations.params import validate_section

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "leaks"
_NAMES = ("Priya", "Malik", "Odette", "Tomas", "Ingrid", "Kofi", "Yuki", "Lucia", "Anders", "Zara")
_NAME = re.compile(r"(?<=[a-z0-9,;)] )[A-Z][a-z]+\b")
_NUMBER = re.compile(r"(?<![\w.^_])\d+(?:\.\d+)?(?![\w^])")


def rewordings() -> list[dict[str, str]]:
    """Returns rows of id, level, original, reworded."""
    return [json.loads(line) for line in (FOLDER / "reworded.jsonl").read_text(encoding="utf-8").splitlines()]


def formulas() -> list[dict[str, str]]:
    """Returns rows of id and original, with LaTeX."""
    return [json.loads(line) for line in (FOLDER / "latex.jsonl").read_text(encoding="utf-8").splitlines()]


def respaced(text: str) -> str:
    """Returns the same words in another typing: case, spaces, line ends, quotation marks, thousands separators."""
    text = text.upper().replace(". ", ".\n\n").replace(", ", " , ").replace("'", "’")
    return re.sub(r"(\d)(\d{3})\b", r"\1,\2", text)


def respaced_latex(text: str) -> str:
    r"""Returns the formulas in another style: `\(..\)`, `\dfrac`, `\left(`, thin spaces, `\tfrac12`, `\leqslant`."""
    parts = re.split(r"(?<!\\)\$", text)
    loose = [part.replace("+", "~+\\,").replace("=", "\\; = \\;") for part in parts]
    text = "".join(f"\\( {new} \\)" if i % 2 else old for i, (old, new) in enumerate(zip(parts, loose, strict=True)))
    text = re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\tfrac\1\2", text).replace("\\frac", "\\dfrac")
    text = text.replace("\\le ", "\\leqslant ").replace("\\circ", "{\\circ}").replace("^2", "^{2}")
    return re.sub(r"(?<!\\left)\(((?:[^()\\]|\\[a-z])*)\)", r"\\left( \1 \\right)", text)


def renumbered(text: str, draw: random.Random) -> str:
    """Replaces every number, except exponents and indices."""
    return _NUMBER.sub(lambda _: str(draw.randint(2, 97)), text)


def renamed(text: str, draw: random.Random) -> str:
    """Replaces numbers and names of people."""
    names = sorted(set(_NAME.findall(text)) - set(re.findall(r"\b[a-z]+", text)))
    others = dict(zip(names, draw.sample(_NAMES, min(len(names), len(_NAMES))), strict=False))
    for name, other in others.items():
        text = re.sub(rf"\b{name}\b", other, text)
    return renumbered(text, draw)


def planted(stories: list[str], latex: list[str], seed: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Returns (original, leak) pairs by kind; leaves out texts that a kind does not change."""
    draw = random.Random(seed)
    kinds: dict[str, tuple[list[str], Callable[[str], str]]] = {
        "verbatim": (stories + latex, lambda text: text),
        "respaced": (stories, respaced),
        "respaced_latex": (latex, respaced_latex),
        "renumbered": (stories, lambda text: renumbered(text, draw)),
        "renumbered_and_renamed": (stories, lambda text: renamed(text, draw)),
        "renumbered_latex": (latex, lambda text: renumbered(text, draw)),
    }
    leaks = {
        kind: [(text, change(text)) for text in texts if kind == "verbatim" or change(text) != text]
        for kind, (texts, change) in kinds.items()
    }
    for row in rewordings():
        leaks.setdefault(f"reworded_{row['level']}", []).append((row["original"], row["reworded"]))
    return leaks


def recipe_rules() -> DecontaminationRules:
    """Returns the rules of the recipe gsm8k-smollm2."""
    recipe = PROJECT / "pipelines" / "recipes" / "gsm8k-smollm2.yaml"
    section = yaml.safe_load(recipe.read_text(encoding="utf-8"))["curate"]
    return validate_section(section, "curate", CurateParams, recipe).decontamination


def read_mirror(mirror: Path, name: str, field: str) -> list[str]:
    """Returns one text of each row of a mirrored file."""
    known = {entry["name"]: entry for entry in json.loads((mirror / "sources.json").read_text())}
    text = (mirror / known[name]["sha256"]).read_text(encoding="utf-8")
    rows = json.loads(text) if known[name]["format"] == "json" else [json.loads(line) for line in text.splitlines()]
    return [row[field] for row in rows]


def recall_by_kind(index: Contamination, leaks: dict[str, list[tuple[str, str]]]) -> dict[str, tuple[int, int]]:
    """Returns by kind the number of leaks for which their benchmark problem was hit, and the number of leaks."""
    return {
        kind: (
            sum(original in {hit.benchmark_problem for hit in index.find_all(leak)} for original, leak in pairs),
            len(pairs),
        )
        for kind, pairs in leaks.items()
    }
