"""Recall, precision and speed of extract_web on pages and documents with gold pairs.

    python -m benchmarks.extraction --data DATA_FOLDER [--part books|documents|confidence|speed] [--every N]

A prediction matches a gold pair of its page when problem and solution are both at least 0.9 similar. Similarity is
rapidfuzz's ratio of letters and digits, without LaTeX commands. One prediction matches one pair. `speed` compares the
pages per second on one core with trafilatura's main-text extraction. rapidfuzz and trafilatura are dependencies of this
benchmark only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.extract_web.extraction import extract_page

BOOKS = ("algebra_trigonometry", "statistics")
DOCUMENTS = {
    "prealgebra-bundle": "cnxml",
    "contemporary-mathematics": "cnxml",
    "openintro_statistics": "latex",
    "walkccc_clrs": "markdown",
    "discrete_book": "pretext",
}
MINIMUM_SIMILARITY = 90.0
IMAGES = re.compile(r"(?:\s*!\[[^\n]*?\]\([^()\n]*\))+\s*")
"""Solutions that are pictures only: the documents' gold, which is text, does not have them."""
UNSEEN = frozenset(["title", "label", "latex-image", "description", "shortdescription", "hint", "idx", "notation"])
Pairs = dict[str, list[tuple[str, str]]]


def require_pages(parser: argparse.ArgumentParser, data: Path) -> None:
    """Exits with code 2 if `data` is not the folder with the books."""
    if not (data / "pages").is_dir():
        parser.error(f"--data {data} has no folder pages: name the folder that holds the books' gold")


def rows(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a .jsonl.gz file."""
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def normalized(text: str | None) -> str:
    """Lower-case letters and digits, LaTeX commands dropped."""
    text = (text or "").replace("[link]", " ")
    text = re.sub(r"\\(?:begin|end)\{[a-z*]+\}|\\[A-Za-z]+", " ", text)
    return re.sub(r"[^0-9a-z]", "", text.lower())


def pairs(found: Iterable[Mapping[str, Any]]) -> Pairs:
    """Normalised (problem, solution) by page; rows without a solution are left out."""
    by_page: Pairs = defaultdict(list)
    for row in found:
        if row.get("solution"):
            by_page[row["page"]].append((normalized(row["problem"]), normalized(row["solution"])))
    return by_page


def score(predicted: Pairs, gold: Pairs) -> tuple[float, float, int]:
    """(recall, precision, gold pairs)."""
    matched, found, wanted = matches(predicted, gold)
    return matched / max(wanted, 1), matched / max(found, 1), wanted


def matches(predicted: Pairs, gold: Pairs) -> tuple[int, int, int]:
    """Returns (matched, predicted, gold pairs); predictions for gold without a solution do not count."""
    import numpy
    from rapidfuzz import fuzz, process

    matched = found_total = wanted_total = 0
    for page in sorted(set(predicted) | set(gold)):
        known = gold.get(page, [])
        wanted = [pair for pair in known if len(pair[0]) >= 3 and pair[1]]
        found = [pair for pair in predicted.get(page, []) if pair in wanted or pair not in known]
        found_total += len(found)
        wanted_total += len(wanted)
        if not wanted or not found:
            continue
        parts = [
            process.cdist(
                [p[i] for p in wanted], [p[i] for p in found], scorer=fuzz.ratio, score_cutoff=MINIMUM_SIMILARITY
            )
            for i in (0, 1)
        ]
        similarity = numpy.minimum(*parts)
        taken: set[int] = set()
        for row in numpy.argsort(-similarity.max(axis=1)):
            for column in numpy.argsort(-similarity[row]):
                if similarity[row, column] < MINIMUM_SIMILARITY:
                    break
                if int(column) not in taken:
                    taken.add(int(column))
                    matched += 1
                    break
    return matched, found_total, wanted_total


def extracted(name: str, content: str, form: str) -> list[dict[str, Any]]:
    """Candidates of one page, with the field `page`."""
    page = {"page_id": name, "url": "", "format": form, "content": content, "licence": ""}
    return [{**row, "page": name} for row in extract_page(page, 60)[0]]


def report(name: str, gold: Pairs, pages: Iterable[tuple[str, str, str]]) -> tuple[int, int, int]:
    """Prints one line: recall, precision, CPU seconds of extraction. Returns the counts of `matches`."""
    pages = list(pages)
    form = pages[0][2] if pages else ""
    started = time.process_time()
    found = [row for page, content, form in pages for row in extracted(page, content, form)]
    found = [row for row in found if form == "html" or not IMAGES.fullmatch(row["solution"] or "")]
    seconds = time.process_time() - started
    counts = matches(pairs(found), gold)
    print(f"{name:48} {told(*counts)} pages {len(pages):4} {seconds:6.1f} s", flush=True)
    return counts


def told(matched: int, found: int, wanted: int) -> str:
    """Returns recall and precision of these counts as text; precision is 0 if nothing was found."""
    return f"recall {matched / max(wanted, 1):.4f} precision {matched / max(found, 1):.4f} gold {wanted:6}"


def books(data: Path, every: int) -> None:
    """Measures the books' pages, unchanged."""
    for book in BOOKS:
        pages = rows(data / "pages" / f"{book}.pages.jsonl.gz")[::every]
        names = {page["page"] for page in pages}
        gold = [row for row in rows(data / "pages" / f"{book}.gold.jsonl.gz") if row["page"] in names]
        report(book, pairs(gold), ((page["page"], page["html"], "html") for page in pages))


def documents(data: Path, every: int) -> None:
    """Measures documents whose source marks exercises and solutions; the plain parsers below read their gold."""
    for name, form in DOCUMENTS.items():
        found = rows(data / "documents" / f"{name}.jsonl.gz")[::every]
        gold = pairs(
            {"page": one["doc_id"], "problem": problem, "solution": solution}
            for one in found
            for problem, solution in marked_pairs(one["text"], form)
        )
        report(f"{name} ({form})", gold, ((one["doc_id"], one["text"], form) for one in found))


def marked_pairs(text: str, form: str) -> Iterator[tuple[str, str]]:
    """Yields (problem, solution) by the marks in the source, as plain text, without using the measured readers."""
    if form in ("cnxml", "pretext"):
        yield from _xml_pairs(text)
    elif form == "markdown":
        for section in re.split(r"^#+ .*$", text, flags=re.MULTILINE):
            quote = re.match(r"\s*((?:^>.*\n?)+)", section, re.MULTILINE)
            if quote:
                yield re.sub(r"^>", "", quote[1], flags=re.MULTILINE), section[quote.end() :]
    else:
        body = r"\\begin\{nexercise\}((?:(?!\\begin\{nexercise\}).)*?)\\end\{nexercise\}"
        exercise = body + r"\s*\\end\{exercisewrap\}\s*\\footnotetext\{"
        for found in re.finditer(exercise, text, re.DOTALL):
            yield _without_layout(found[1]), _without_layout(_to_brace(text, found.end()))
        for found in re.finditer(r"\\begin\{nexample\}\{", text):
            asked = _to_brace(text, found.end())
            worked = text[found.end() + len(asked) + 1 :].split(r"\end{nexample}")[0]
            yield _without_layout(asked), _without_layout(worked)


def _xml_pairs(text: str) -> Iterator[tuple[str, str]]:
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return
    for element in root.iter():
        parts = {child.tag.rpartition("}")[2]: _seen_text(child) for child in reversed(element)}
        problem = parts.get("problem") or parts.get("statement")
        if problem and parts.get("solution") and element.tag.rpartition("}")[2] != "task":
            yield problem, parts["solution"]


def _seen_text(element: ElementTree.Element) -> str:
    pieces = [element.text or ""]
    for child in element:
        if child.tag.rpartition("}")[2] not in UNSEEN:
            pieces.append(_seen_text(child))
        pieces.append(child.tail or "")
    return "".join(pieces)


def _to_brace(text: str, start: int) -> str:
    depth = 1
    for place in range(start, min(len(text), start + 20_000)):
        depth += {"{": 1, "}": -1}.get(text[place], 0) if text[place - 1] != "\\" else 0
        if depth == 0:
            return text[start:place]
    return ""


def _without_layout(latex: str) -> str:
    latex = re.sub(r"(?<!\\)%.*", "", latex)
    return re.sub(r"\\(?:label|index|vspace|hspace|begin|end|ref|vref|footfullcite)\{[^{}]*\}", " ", latex)


def reliability(data: Path, every: int) -> None:
    """Compares the precision of the books' rows, by rule and failed checks, with their stated confidence."""
    from rapidfuzz import fuzz

    counts: dict[tuple[str, float], list[int]] = defaultdict(lambda: [0, 0])
    for book in BOOKS:
        gold = pairs(rows(data / "pages" / f"{book}.gold.jsonl.gz"))
        for page in rows(data / "pages" / f"{book}.pages.jsonl.gz")[::every]:
            left = list(gold.get(page["page"], []))
            for row in extracted(page["page"], page["html"], "html"):
                if not row["solution"]:
                    continue
                own = normalized(row["problem"]), normalized(row["solution"])
                least = MINIMUM_SIMILARITY
                alike = (p for p in left if min(map(fuzz.ratio, own, p)) >= least)
                right = next(alike, None)
                if right:
                    left.remove(right)
                rule, _, checks = re.sub(r":[^;]*", "", row["evidence"]).partition("; ")
                count = counts[f"{rule} {checks}".strip(), row["confidence"]]
                count[0] += 1
                count[1] += right is not None
    for (evidence, confidence), (total, right) in sorted(counts.items()):
        print(f"{evidence:40} confidence {confidence:.2f} right {right / total:.3f} of {total}")


def speed(data: Path, every: int) -> None:
    """Measures CPU seconds of one core on the books' pages, in alternation with trafilatura on the same pages."""
    import trafilatura

    contents = [page["html"] for book in BOOKS for page in rows(data / "pages" / f"{book}.pages.jsonl.gz")[::every]]
    seconds = {"ours": 0.0, "trafilatura": 0.0}
    for content in contents:
        started = time.process_time()
        extracted("page", content, "html")
        between = time.process_time()
        trafilatura.extract(content)
        seconds["ours"] += between - started
        seconds["trafilatura"] += time.process_time() - between
    for name, spent in seconds.items():
        print(f"{name:12} {len(contents) / spent:6.1f} pages/s ({len(contents)} pages, {spent:.1f} CPU s)")
    print(f"ratio ours / trafilatura: {seconds['trafilatura'] / seconds['ours']:.2f}")


PARTS = {"books": books, "confidence": reliability, "documents": documents, "speed": speed}


def main() -> None:
    """Runs the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--every", type=int, default=1, help="take every Nth page")
    given = parser.parse_args()
    require_pages(parser, given.data)
    for part in given.part or PARTS:
        PARTS[part](given.data, given.every)


if __name__ == "__main__":
    main()
