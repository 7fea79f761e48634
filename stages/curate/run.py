"""Curates the collected tables: selects problems, and records every dropped row with its reason in the funnel.

`main` reads and writes. `curate` runs the steps, which are defined below in its order; each is a pure function from
rows to rows. gradability.py decides which answers can be graded. Pass rates measure difficulty: the share of correct
responses. They are valid for the policy that was sampled. Their file is pinned by its sha256; its problems are matched
by normalised text, for every source.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from stages.algorithms.answers.equivalence import exact_verdict
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.decontamination import (
    BenchmarkProblem,
    Contamination,
    DecontaminationRules,
    HitPairs,
    NearDuplicateRule,
    NearDuplicates,
)
from stages.algorithms.problem_text import normalise_problem
from stages.curate.gradability import answer_kind, ask_for_integers, keep_gradable, keep_kinds
from stages.curate.stage import CurateParams, IntegerAnswers, PassRates, require_roles
from stages.engines.verifier.params import VerifierParams
from stages.foundations.errors import UserError
from stages.foundations.files import packed_lines, require_sha256, write_metrics
from stages.foundations.job import Job
from stages.foundations.machine import from_root
from stages.foundations.params import CustomFunctionParams, chosen
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import (
    BENCHMARK,
    CONTAMINATION,
    DIFFICULTY,
    DROPPED,
    DUPLICATE,
    PROBLEM,
    TRANSFORM,
    Funnel,
    read_table,
    require_rows,
    write_table,
)
from stages.observe.progress import progress
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Runs the whole stage. Metrics count training problems; `rows/kept` is train and validation together."""
    paths = job.paths
    params: CurateParams = job.sections["curate"]
    limits: VerifierParams = job.sections["verifier"]
    seed, sources = job.seed, job.sections["sources"]
    require_roles(sources)
    roles = {name: source.role for name, source in sources.items()}
    revisions = {name: source.revision for name, source in sources.items()}
    described = {"curate": params.model_dump(mode="json"), "roles": roles}
    with track(job.attempt(described)) as run:
        collected = {name: read_collected(paths.collected, name) for name in roles}
        rows = {
            role: [row for name in roles if roles[name] == role for row in collected[name]]
            for role in ("train", "benchmark", "chat")
        }
        funnel, benchmark_funnel, chat_funnel = (Funnel("curate", len(of_role)) for of_role in rows.values())
        curated = curate(rows["train"], rows["benchmark"], revisions, params, limits, seed, funnel, benchmark_funnel)
        require_benchmarks(curated, roles)
        # Without conversations the index of the benchmarks is not built a second time.
        of_chat = rows["chat"], curated.benchmarks, revisions, params.decontamination, chat_funnel
        conversations, pairs, by_rule = drop_contaminated(*of_chat) if rows["chat"] else ([], [], Counter())
        write_table(curated.train, paths.train, PROBLEM)
        write_table(curated.validation, paths.validation, PROBLEM)
        write_table(curated.benchmarks, paths.benchmarks, BENCHMARK)
        write_table(conversations, paths.conversations, PROBLEM)
        write_table([*curated.contamination, *pairs], paths.contamination, CONTAMINATION)
        write_table(curated.duplicates, paths.duplicates, DUPLICATE)
        write_table(curated.transforms, paths.transforms, TRANSFORM)
        write_table(curated.difficulty, paths.difficulty, DIFFICULTY)
        dropped = [one.dropped_frame() for one in (funnel, benchmark_funnel, chat_funnel)]
        write_table(pandas.concat(dropped, ignore_index=True), paths.dropped, DROPPED)
        metrics = funnel.metrics(len(curated.train) + len(curated.validation)) | count(curated)
        lost = benchmark_funnel.metrics(len(curated.benchmarks))
        metrics |= {f"benchmarks/{name}": lost[name] for name in lost if name.startswith("dropped/")}
        if rows["chat"]:
            metrics |= {f"conversations/{name}": n for name, n in chat_funnel.metrics(len(conversations)).items()}
            metrics["contamination/pairs"] += by_rule.total()
        run.summary(metrics)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})


def require_benchmarks(curated: Curated, roles: dict[str, str]) -> None:
    """Raises UserError when a benchmark has no usable row: its scores would silently be missing."""
    present = {row["benchmark"] for row in curated.benchmarks}
    for name in (name for name, role in roles.items() if role == "benchmark" and name not in present):
        raise UserError(f"no row of benchmark `{name}` has all its texts: look at sources.{name} and collect it again")


def read_collected(folder: Path, source: str) -> list[Row]:
    """Returns the rows of one source; UserError when its table is not there or empty."""
    path = folder / f"{source}.parquet"
    if not path.exists():
        raise UserError(f"{path} does not exist: `dvc repro collect@{source}` makes it")
    frame = require_rows(read_table(path, PROBLEM), path, f"look at sources.{source} and collect it again")
    return frame.to_dict("records")


def count(curated: Curated) -> dict[str, int]:
    """Counts the rows of each table, curate's intermediate counts, and each benchmark's rows and contaminated rows."""
    counts = {
        "train/rows": len(curated.train),
        "validation/rows": len(curated.validation),
        "contamination/pairs": sum(
            number for name, number in curated.counts.items() if name.startswith("contamination/pairs_")
        ),
        **curated.counts,
    }
    for name, number in Counter(row["benchmark"] for row in curated.benchmarks).items():
        counts[f"{name}/rows"] = number
        hit = {row["benchmark_problem_id"] for row in curated.contamination if row["benchmark"] == name}
        counts[f"{name}/rows_hit"] = len(hit)
    return counts


Row = dict[str, Any]
_PICTURE = re.compile(
    r"!\[[^\]\[]*\]\([^()]*\)|\\includegraphics(?:\[[^\]\[]*\])?\{[^{}]*\}|<img\b[^<>]*>", re.IGNORECASE
)
_TEXTS = ("problem_id", "source", "problem", "answer", "licence")


@dataclass(frozen=True)
class Curated:
    """The results of curate; the drops are in the funnels."""

    train: list[Row]
    validation: list[Row]
    benchmarks: list[Row]
    contamination: list[Row]
    duplicates: list[Row]
    transforms: list[Row]
    difficulty: list[Row]
    counts: dict[str, int]
    """Counts that tables do not show: pairs by rule, answers not rewritten, unusable lines of the pass-rate file."""


def curate(
    train: Sequence[Row],
    benchmarks: Sequence[Row],
    revisions: Mapping[str, str],
    params: CurateParams,
    limits: VerifierParams,
    seed: int,
    funnel: Funnel,
    benchmark_funnel: Funnel,
) -> Curated:
    """Runs all steps on rows of `problem` tables; UserError when nothing is left to train on.

    Benchmarks are only normalised: published scores are for exactly these rows. Only rows that cannot be graded at all
    (without a text, or with a duplicate id) are dropped, into `benchmark_funnel`.
    """
    marked = [
        {**normalise_row(row), "benchmark": row["source"]} for row in drop_malformed(benchmarks, benchmark_funnel)
    ]
    rows = [normalise_row(row) for row in drop_malformed(train, funnel)]
    rows = drop_unusable(rows, params.max_problem_characters, funnel)
    match chosen("curate.filter", params.filter):
        case CustomFunctionParams() as custom:
            # Before deduplication: of equal problems, the first one that the filter accepts is kept.
            rows = keep_by_function(rows, custom, limits, funnel)
    pairs, near = [], params.deduplication.near_duplicates
    if params.deduplication.exact:
        # Before near duplicates: exact copies are cheap to find and need no threshold.
        rows, pairs = drop_duplicates(rows, funnel)
    if near:
        rows, similar = drop_near_duplicates(rows, near, funnel)
        pairs += similar
    # These pairs are only reported: scores on a benchmark without some of its rows could not be compared.
    pairs += benchmark_overlaps(marked, near)
    # After deduplication, so that each text is compared with the benchmarks only once.
    rows, contamination, by_rule = drop_contaminated(rows, marked, revisions, params.decontamination, funnel)
    counts = {f"contamination/pairs_{rule}": number for rule, number in sorted(by_rule.items())}
    transforms: list[Row] = []
    if isinstance(params.transform, IntegerAnswers):  # only now: a rewritten problem would not be recognised
        rows, transforms, left = ask_for_integers(rows)
        counts |= {"transform/rows": len(transforms)}
        counts |= {f"transform/left_{reason}": number for reason, number in sorted(left.items())}
    rows = keep_kinds(rows, params.answer_kinds, funnel)
    if params.gradability_test:
        rows = keep_gradable(rows, limits, funnel)
    difficulty: list[Row] = []
    if isinstance(params.difficulty, PassRates):
        rates, unusable = read_pass_rates(params.difficulty)
        # The pass rates were measured on the original problem, before it was changed to have an integer answer.
        originals = {row["problem_id"]: row["original_problem"] for row in transforms}
        rows, difficulty = rate_difficulty(rows, originals, rates, params.difficulty, funnel)
        counts |= {"difficulty/rows": len(difficulty)}
        counts |= {f"difficulty/unusable_{reason}": number for reason, number in sorted(unusable.items())}
    # Last, so that validation and training problems have passed the same rules.
    validation, rows = split(rows, params, seed, funnel)
    counts |= {f"duplicates/{scope}": number for scope, number in sorted(Counter(p["scope"] for p in pairs).items())}
    return Curated(rows, validation, marked, contamination, pairs, transforms, difficulty, counts)


def drop_malformed(rows: Sequence[Row], funnel: Funnel) -> list[Row]:
    """Returns rows with all required texts and a unique id; of rows with one id, the first is kept."""
    kept, ids = [], set()
    for row in rows:
        missing = [name for name in _TEXTS if not isinstance(row[name], str)]
        if missing:
            row_id = row["problem_id"] if isinstance(row["problem_id"], str) else ""
            readable = {name: value if isinstance(value, str) else None for name, value in row.items()}
            funnel.drop(readable, "missing_field", f"no text in {', '.join(missing)}", row_id)
        elif row["problem_id"] in ids:
            funnel.drop(row, "duplicate_id", "a row before has this id")
        else:
            ids.add(row["problem_id"])
            kept.append(row)
    return kept


def normalise_row(row: Row) -> Row:
    """Returns a copy with all texts normalised."""
    texts = {name: normalise_text(row[name]) for name in ("problem", "answer")}
    solution = row["solution"]
    return {**row, **texts, "solution": normalise_text(solution) if isinstance(solution, str) else None}


def drop_unusable(rows: Sequence[Row], max_problem_characters: int, funnel: Funnel) -> list[Row]:
    """Returns rows with an answer and with a problem that is not empty or too long."""
    kept = []
    for row in rows:
        if len(row["problem"]) > max_problem_characters:
            funnel.drop(row, "problem_too_long", f"{len(row['problem'])} characters")
        # A language model cannot read a problem that is only a picture.
        elif not normalise_problem(_PICTURE.sub(" ", row["problem"])):
            funnel.drop(row, "no_problem")
        elif answer_kind(row["answer"]) is None:
            funnel.drop(row, "no_answer")
        else:
            kept.append(row)
    return kept


def keep_by_function(
    rows: Sequence[Row], params: CustomFunctionParams, limits: VerifierParams, funnel: Funnel
) -> list[Row]:
    """Returns rows for which the function returns True. False, or a text with the reason, drops as `custom_filter`.

    Rows on which the function fails are dropped as `filter_failed`; UserError when they are more than
    `verifier.abort_undecided_fraction` of the rows.
    """
    from stages.engines.custom_functions import CustomFunction

    kept, faults = [], []
    with CustomFunction(params, limits) as function:
        for start in progress(range(0, len(rows), 1_000), label="filter", unit="x 1,000 rows"):
            part = rows[start : start + 1_000]
            for row, value in zip(part, function.decide(part, allows_text=True), strict=True):
                if value.fault:
                    faults.append(value.fault)
                    funnel.drop(row, "filter_failed", value.fault)
                elif value.value:
                    kept.append(row)
                else:
                    funnel.drop(row, "custom_filter", value.text)
    if len(faults) > limits.abort_undecided_fraction * len(rows):
        raise UserError(
            f"curate.filter failed on {len(faults)} of {len(rows)} problems, more than "
            f"verifier.abort_undecided_fraction = {limits.abort_undecided_fraction:g}: correct {params.file} "
            f"(the first: {faults[0]})"
        )
    return kept


def split(rows: Sequence[Row], params: CurateParams, seed: int, funnel: Funnel) -> tuple[list[Row], list[Row]]:
    """Returns validation and training rows, each in the order of `rows`.

    Each row's random number depends only on the seed and its problem_id, so adding a source moves few rows across.
    """
    if len(rows) <= params.validation_rows:
        raise UserError(
            f"{len(rows)} problems are left, but curate.validation_rows is {params.validation_rows}: lower it, add "
            "sources, or look for the reasons in the table of dropped rows"
        )
    # A separate key for each row, not a shuffle: with one more row a shuffle would change completely.
    drawn = sorted(rows, key=lambda row: derive_seed(seed, "curate", row["problem_id"]))
    validation = {row["problem_id"] for row in drawn[: params.validation_rows]}
    # The same order, so raising the limit adds rows and moves none.
    last = None if params.max_train_rows is None else params.validation_rows + params.max_train_rows
    train = {row["problem_id"] for row in drawn[params.validation_rows : last]}
    for row in rows:
        # Counted as drops, or the funnel would not add up.
        if row["problem_id"] not in validation and row["problem_id"] not in train:
            funnel.drop(row, "over_max_train_rows")
    return [row for row in rows if row["problem_id"] in validation], [row for row in rows if row["problem_id"] in train]


# Without tabs and line ends, which `normalise_text` turns into blanks and lines.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufeff\u200b\u2060]")
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")


def normalise_text(text: str) -> str:
    """Returns the text in Unicode NFC with `\\n` line ends, single blanks, at most one empty line in a row, and without
    invisible characters or margins."""
    # Composed first: the same accent in two forms would make one problem look like two.
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    text = _BLANKS.sub(" ", _CONTROL.sub("", text))
    lines = "\n".join(line.strip() for line in text.split("\n"))
    return _EMPTY_LINES.sub("\n\n", lines).strip()


def drop_duplicates(rows: Sequence[Row], funnel: Funnel) -> tuple[list[Row], list[Row]]:
    """Keeps the first of the rows with equal normalised problems, none if their answers differ; also returns pairs."""
    same: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        same[normalise_problem(row["problem"])].append(row)
    kept, pairs = [], []
    for first, *others in same.values():
        other = next((row for row in others if contradict(first["answer"], row["answer"])), None)
        rule = "exact" if other is None else "contradicting_answers"
        pairs += [pair(row, first, rule, 1.0) for row in others]
        if other is None:
            kept.append(first)
        # If answers contradict each other, the right one is unknown: all rows are dropped.
        for row in others if other is None else [first, *others]:
            if other is None:
                funnel.drop(row, "duplicate", f"of {first['problem_id']}")
            else:
                detail = f"{first['problem_id']} says {first['answer']}, {other['problem_id']} says {other['answer']}"
                funnel.drop(row, "contradicting_answers", detail)
    return kept, pairs


def contradict(answer: str, other: str) -> bool:
    """Returns True only if the exact comparison is certain: unreadable spellings are not a contradiction."""
    decision = exact_verdict(answer, other)
    return decision is not None and decision[0] is Verdict.WRONG


def drop_near_duplicates(rows: Sequence[Row], rule: NearDuplicateRule, funnel: Funnel) -> tuple[list[Row], list[Row]]:
    """Returns the rows that are not similar to an earlier kept row, and a pair for each of the others."""
    seen, kept, pairs = NearDuplicates(rule), [], []
    for row in progress(rows, label="near-duplicates"):
        similar = seen.find(row["problem"])
        if similar:
            key, similarity = similar[0]
            funnel.drop(row, "near_duplicate", f"of {kept[key]['problem_id']}, similarity {similarity:.2f}")
            pairs.append(pair(row, kept[key], "near_duplicates", similarity))
        else:
            seen.add(len(kept), row["problem"])
            kept.append(row)
    return kept, pairs


def benchmark_overlaps(rows: Sequence[Row], rule: NearDuplicateRule | None) -> list[Row]:
    """Returns pairs of equal or similar benchmark problems, none of which is dropped.

    Each problem is paired once, with the first equal problem before it, or else the most similar one. So a problem that
    occurs n times in a benchmark gives n - 1 pairs.
    """
    seen = NearDuplicates(rule) if rule else None
    first: dict[str, Row] = {}
    different: list[Row] = []
    pairs = []
    for row in progress(rows, label="benchmarks"):
        text = normalise_problem(row["problem"])
        if text in first:
            is_other = contradict(first[text]["answer"], row["answer"])
            pairs.append(pair(row, first[text], "contradicting_answers" if is_other else "exact", 1.0, "benchmark"))
            continue
        first[text] = row
        similar = seen.find(row["problem"]) if seen else []
        if similar:
            key, similarity = similar[0]
            pairs.append(pair(row, different[key], "near_duplicates", similarity, "benchmark"))
        if seen:
            seen.add(len(different), row["problem"])
        different.append(row)
    return pairs


def pair(row: Row, other: Row, rule: str, similarity: float, role: str = "source") -> Row:
    """Returns a row of the `duplicate` table; scopes are within_ and across_ source or benchmark."""
    is_within = row["source"] == other["source"]
    return {
        **{name: row[name] for name in ("problem_id", "source", "problem")},
        **{f"other_{name.removeprefix('problem_')}": other[name] for name in ("problem_id", "source")},
        "other_problem": other["problem"],
        "scope": f"within_{role}" if is_within else f"across_{role}s",
        "rule": rule,
        "similarity": similarity,
    }


def drop_contaminated(
    rows: Sequence[Row],
    benchmarks: Sequence[Row],
    revisions: Mapping[str, str],
    rules: DecontaminationRules,
    funnel: Funnel,
) -> tuple[list[Row], list[Row], Counter[str]]:
    """Returns rows that are in no benchmark, `contamination` rows for a bounded number of pairs, and pairs by rule."""
    problems = [
        BenchmarkProblem(row["benchmark"], row["problem_id"], row["problem"], revisions.get(row["benchmark"], ""))
        for row in benchmarks
    ]
    index, kept, pairs = Contamination(problems, rules), [], HitPairs()
    for row in progress(rows, label="decontamination"):
        # Any turn of a conversation may contain a benchmark problem.
        texts = [turn["content"] for turn in json.loads(row["messages"])] if "messages" in row else [row["problem"]]
        found = [(text, hits) for text in texts if (hits := index.find_all(text))]
        if not found:
            kept.append(row)
            continue
        worst = found[0][1][0]
        funnel.drop(row, "contaminated", f"{worst.rule} {worst.overlap:.2f}: {worst.benchmark_problem_id}")
        for text, hits in found:
            pairs.add({"problem_id": row["problem_id"], "source": row["source"], "problem": text}, hits)
    return kept, pairs.rows, pairs.by_rule


Measured = tuple[float, int]
"""Pass rate and responses behind it."""
_MAX_LINE_BYTES = 64 << 20


def read_pass_rates(params: PassRates) -> tuple[dict[str, Measured], Counter[str]]:
    """Returns pass rates by normalised problem, and counts of the file's unusable lines, by reason.

    A problem that is measured several times gets the mean, weighted by the responses. UserError when the file is
    missing, has another hash, or has no usable line.
    """
    path = from_root(params.path)
    if not path.is_file():
        raise UserError(f"{path} does not exist: correct curate.difficulty.path, it counts from the project's root")
    remedy = "which curate.difficulty.sha256 says: put its sha256 into the recipe if it is what you want"
    require_sha256(path, params.sha256, remedy)
    passed: dict[str, list[Measured]] = defaultdict(list)
    unusable: Counter[str] = Counter()
    for line in packed_lines(path, _MAX_LINE_BYTES):
        if line is None:
            unusable["malformed_line"] += 1
        elif line.strip():
            text, measured, reason = _read_line(line, params)
            if reason:
                unusable[reason] += 1
            else:
                passed[text].append(measured)
    if not passed:
        raise UserError(
            f"{path}: no line has a problem in `{params.problem_field}` and a pass rate in "
            f"`{params.outcomes_field}` ({dict(unusable)}): correct curate.difficulty"
        )
    return {text: _mean(several) for text, several in passed.items()}, unusable


def _read_line(line: bytes, params: PassRates) -> tuple[str, Measured, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return "", (0.0, 0), "malformed_line"
    if not isinstance(row, dict) or not isinstance(row.get(params.problem_field), str):
        return "", (0.0, 0), "no_problem"
    text = normalise_problem(row[params.problem_field])
    outcomes = row.get(params.outcomes_field)
    if isinstance(outcomes, list) and outcomes and all(isinstance(outcome, bool) for outcome in outcomes):
        return text, (sum(outcomes) / len(outcomes), len(outcomes)), "" if text else "no_problem"
    # JSON's true is an int in Python, but not a rate.
    is_rate = isinstance(outcomes, int | float) and not isinstance(outcomes, bool) and math.isfinite(outcomes)
    if is_rate and 0 <= outcomes <= 1:
        return text, (float(outcomes), 1), "" if text else "no_problem"
    return "", (0.0, 0), "no_pass_rate"


def _mean(several: Sequence[Measured]) -> Measured:
    samples = sum(number for _, number in several)
    return math.fsum(rate * number for rate, number in several) / samples, samples


def rate_difficulty(
    rows: Sequence[Row], originals: Mapping[str, str], rates: Mapping[str, Measured], params: PassRates, funnel: Funnel
) -> tuple[list[Row], list[Row]]:
    """Returns rows with a pass rate in the range or without one, and a `difficulty` row for each row with a pass rate.

    `originals` has the problems before rewriting, by problem_id. Dropped: `too_hard`, `too_easy`.
    """
    kept, found = [], []
    for row in rows:
        measured = rates.get(normalise_problem(originals.get(row["problem_id"], row["problem"])))
        if measured is None:
            kept.append(row)
            continue
        rate, samples = measured
        if rate < params.least_pass_rate:
            funnel.drop(row, "too_hard", f"pass rate {rate:.3f} of {samples}")
        elif rate > params.most_pass_rate:
            funnel.drop(row, "too_easy", f"pass rate {rate:.3f} of {samples}")
        else:
            kept.append(row)
        own = {"problem_id": row["problem_id"], "source": row["source"]}
        found.append({**own, "pass_rate": rate, "samples": samples, "band": band(rate)})
    return kept, found


def band(rate: float) -> str:
    """Returns unsolved (0), hard (under a third), medium, easy (over two thirds) or solved (1)."""
    if rate in (0.0, 1.0):
        # Apart from the others: a group of responses with equal rewards teaches nothing.
        return "solved" if rate else "unsolved"
    return "hard" if rate < 1 / 3 else "medium" if rate <= 2 / 3 else "easy"
