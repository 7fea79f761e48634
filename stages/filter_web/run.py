"""Filters candidates into trusted problems: rules on each row, duplicates, benchmarks, agreement with a policy.

Each rule checks one exercise and returns its objection, or None. Its name in `RULES` is the counted reason; its
return value goes into the table of dropped rows.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas

from stages.algorithms.answers.decisions import decide
from stages.algorithms.answers.equivalence import exact_verdict
from stages.algorithms.answers.extraction import extract_answer, is_prose
from stages.algorithms.answers.verdicts import Judgement, Verdict
from stages.algorithms.decontamination import BenchmarkProblem, Contamination, HitPairs, NearDuplicates
from stages.algorithms.problem_text import normalise_problem
from stages.engines.trainers.one_rank import launched_ranks
from stages.filter_web.stage import FilterRules, FilterWebParams, LengthLimits, PolicyAgreement
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.tables import (
    BENCHMARK,
    CANDIDATE,
    CONTAMINATION,
    DROPPED,
    PROBLEM,
    Funnel,
    read_table,
    require_rows,
    write_table,
)
from stages.observe.progress import progress
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads the candidates and benchmarks, filters, writes solutions and dropped rows, metrics last.

    An empty result is an error of `demonstrate`, which knows whether other sources make up for it.
    """
    paths = job.paths
    params: FilterWebParams = job.sections["filter_web"]
    candidates = require_rows(
        read_table(paths.candidates, CANDIDATE), paths.candidates, "no page of `collect_web` holds an exercise"
    )
    benchmarks = read_table(paths.benchmarks, BENCHMARK)
    attempt = job.attempt()
    with launched_ranks() as ranks, track(attempt) as run:
        with run.phase("rules"):
            rows, hits, funnel = filter_candidates(candidates, benchmarks, params.rules)
        sampled: dict[str, int] = {}
        match chosen("filter_web.agreement", params.agreement):
            case PolicyAgreement() as agreement:
                from stages.filter_web.agreement import keep_agreeing

                with run.phase("agreement"):
                    rows, sampled = keep_agreeing(rows, funnel, agreement, paths.params, paths.policy, attempt, ranks)
        # All ranks sample and have the same rows; one of them writes.
        if ranks.rank != 0:
            return
        metrics = funnel.metrics(len(rows)) | sampled
        write_table([_problem_row(row) for row in rows], paths.solutions, PROBLEM)
        write_table(hits, paths.contamination, CONTAMINATION)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)
        shutil.rmtree(attempt.pieces, ignore_errors=True)


Rows = list[dict[str, Any]]
# The functions that have LaTeX commands: `\foo` is not a command.
_FUNCTION = re.compile(
    r"\\operatorname\{(arc(?:cos|sin|tan)|cosh?|coth?|csc|deg|det|dim|exp|gcd|inf|ker|lg|lim|ln|log|max|min|sec|sinh?|sup"
    r"|tanh?)\}(?P<letter>(?=[A-Za-z]))?"
)


def filter_candidates(
    candidates: pandas.DataFrame, benchmarks: pandas.DataFrame, rules: FilterRules
) -> tuple[Rows, Rows, Funnel]:
    """Returns candidates that pass every rule, in order, `contamination` rows of the drops, and the funnel.

    Duplicates are searched only among the rows that passed the earlier rules, so that a broken copy never
    displaces a good one.
    """
    rows: Rows = candidates.astype(object).where(candidates.notna(), None).to_dict("records")
    funnel = Funnel("filter_web", len(rows))
    # Rules on single rows first. They are cheap, and a broken copy must not displace a good duplicate.
    rows = _drop_malformed(rows, funnel)
    rows = _apply_row_rules(rows, rules, funnel)
    rows = _drop_conflicting(rows, rules, funnel)
    rows = _drop_duplicates(rows, rules, funnel)
    rows, hits = _drop_contaminated(rows, benchmarks, rules, funnel)
    return rows, hits, funnel


def _drop_malformed(rows: Rows, funnel: Funnel) -> Rows:
    """Keeps rows with a problem, a page and a unique id; no switch, since nothing later could name the others."""
    kept, ids = [], set()
    for row in rows:
        missing = [name for name in ("candidate_id", "page_id", "problem", "licence") if row[name] is None]
        if missing:
            funnel.drop(row, "missing_field", f"no text in {', '.join(missing)}", row["candidate_id"] or "")
        elif row["candidate_id"] in ids:
            funnel.drop(row, "duplicate_id", "a candidate before has this id", row["candidate_id"])
        else:
            ids.add(row["candidate_id"])
            kept.append(row)
    return kept


def _apply_row_rules(rows: Rows, rules: FilterRules, funnel: Funnel) -> Rows:
    kept = []
    for row in progress(rows, label="rules"):
        reason, detail = first_objection(row, rules)
        if reason:
            funnel.drop(row, reason, detail, row["candidate_id"])
        else:
            kept.append(row)
    return kept


def first_objection(row: dict[str, Any], rules: FilterRules) -> tuple[str, str]:
    candidate = Candidate(row["problem"] or "", row["solution"] or "", row["answer"] or "")
    longest = max(map(len, (candidate.problem, candidate.solution, candidate.answer)))
    if longest > MOST_CHARACTERS:
        return "too_long", f"a text of {longest} characters, at most {MOST_CHARACTERS}"
    for name, rule in RULES.items():
        detail = rule(candidate) if getattr(rules, name) else None
        if detail:
            return name, detail
    # Last, because the other rules say more about a row than its length.
    detail = too_long(candidate, rules.too_long) if rules.too_long else None
    return ("too_long", detail) if detail else ("", "")


def _drop_conflicting(rows: Rows, rules: FilterRules, funnel: Funnel) -> Rows:
    if not rules.conflicting_answers:
        return rows
    first: dict[str, str] = {}
    conflicting: set[str] = set()
    for row in rows:
        text = normalise_problem(row["problem"])
        decision = exact_verdict(first.setdefault(text, row["answer"] or ""), row["answer"] or "")
        if decision is not None and decision[0] is Verdict.WRONG:
            conflicting.add(text)
    kept = []
    for row in rows:
        text = normalise_problem(row["problem"])
        # All of them are dropped, because nothing shows which page is right.
        if text in conflicting:
            detail = f"elsewhere the answer is not {row['answer']}: {first[text]} and others"
            funnel.drop(row, "conflicting_answers", detail, row["candidate_id"])
        else:
            kept.append(row)
    return kept


def _drop_duplicates(rows: Rows, rules: FilterRules, funnel: Funnel) -> Rows:
    near = NearDuplicates(rules.near_duplicate) if rules.near_duplicate else None
    first: dict[str, str] = {}
    kept: Rows = []
    for row in progress(rows, label="duplicates"):
        text = normalise_problem(row["problem"])
        if rules.exact_duplicate and text in first:
            funnel.drop(row, "exact_duplicate", f"of {first[text]}", row["candidate_id"])
            continue
        similar = near.find(row["problem"]) if near else []
        if similar:
            # The most similar one. Its number is its place in `kept`.
            index, similarity = similar[0]
            detail = f"of {kept[index]['candidate_id']}, similarity {similarity:.2f}"
            funnel.drop(row, "near_duplicate", detail, row["candidate_id"])
            continue
        first[text] = row["candidate_id"]
        if near:
            near.add(len(kept), row["problem"])
        kept.append(row)
    return kept


def _drop_contaminated(
    rows: Rows, benchmarks: pandas.DataFrame, rules: FilterRules, funnel: Funnel
) -> tuple[Rows, Rows]:
    """Returns the clean rows, and the hits of the others as rows of the `contamination` table.

    They lack the revision: sources are not a parameter of this stage, and the report knows them.
    """
    if rules.contaminated is None:
        return rows, []
    index = Contamination(_benchmark_problems(benchmarks), rules.contaminated)
    kept, pairs = [], HitPairs()
    for row in progress(rows, label="benchmarks"):
        hits = index.find_all(row["problem"])
        if hits:
            hit = hits[0]
            found = f"{hit.rule} {hit.overlap:.2f} with {hit.benchmark} {hit.benchmark_problem_id}"
            detail = f"{found}: {hit.benchmark_problem}"
            funnel.drop(row, "contaminated", detail, row["candidate_id"])
            own = {"problem_id": row["candidate_id"], "source": _source(row), "problem": row["problem"]}
            pairs.add(own, hits)
        else:
            kept.append(row)
    return kept, [{**pair, "benchmark_revision": None} for pair in pairs.rows]


def _benchmark_problems(benchmarks: pandas.DataFrame) -> Iterable[BenchmarkProblem]:
    columns: Sequence[str] = ("benchmark", "problem_id", "problem")
    whole = benchmarks[list(columns)].dropna()
    return (BenchmarkProblem(*values) for values in whole.itertuples(index=False))


def _source(row: dict[str, Any]) -> str:
    return row["page_id"].partition("/")[0]


def _problem_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "problem_id": row["candidate_id"],
        "source": _source(row),
        "problem": tidy_functions(row["problem"]),
        "answer": tidy_functions(row["answer"] or ""),
        "solution": tidy_functions(row["solution"] or ""),
        "licence": row["licence"],
    }


def tidy_functions(text: str) -> str:
    r"""Writes `\operatorname{sin}` as `\sin`, the form that policies have learnt from other texts."""
    return _FUNCTION.sub(lambda found: f"\\{found[1]}" + (" " if found["letter"] is not None else ""), text)


_IMAGE = re.compile(r"!\[[^\n]*?\]\([^()\n]*\)")
_LIST_ITEM = re.compile(r"^[^\S\n]*(?:[-*]|\(?[a-z]\)|\(?[ivx]{1,4}\)|[a-z]\.)\s", re.MULTILINE)
# Pairs of patterns: `first.*second` in one would take quadratic time on hostile texts.
_INLINE_PARTS = tuple(
    (re.compile(first), re.compile(second))
    for first, second in (
        (r"\(a\)", r"\(b\)"),
        (r"\b[Pp]art a\b", r"\b[Pp]art b\b"),
        (r"(?:^|\s)a\.\s", r"\sb\.\s"),
        (r"\(i\)", r"\(ii\)"),
    )
)
_PARTS_IN_SOLUTION = tuple(re.compile(rf"^[^\S\n]*(?:\(?{letter}\)|{letter}\.)\s", re.MULTILINE) for letter in "ab")
_PICTURE = r"(?:figure|fig\.|diagram|graph|table|chart|picture|image|plot|histogram|spreadsheet)s?"
_IS_PART = re.compile(r"\(?([a-h])[.)]\s")
# extract_web writes `[link]` for a reference. "Your equation" and "part $a$" occurred in kept rows that cannot be
# solved without the preceding task.
_REFERS = re.compile(
    rf"""\[link\]
    |\b{_PICTURE}\s+(?:\d|below|above|shown|on\ the|to\ the|at\ the|given|that\ follows)
    |\b(?:shown|given|see|in|from|using|use)\s+(?:in\s+)?the\s+(?:following\s+|given\s+|accompanying\s+)?{_PICTURE}\b
    |\b(?:previous|preceding|last|next|following|earlier)\s+(?:\w+\s+){{0,2}}
        (?:exercise|problem|question|example|part|result)s?\b
    |\b(?:exercise|problem|question|example|theorem|section|chapter|equation|lemma|part)\s+(?:\d|\$?[a-d]\b|\()
    |\b(?:of|using|use|from|with)\s+your\s+(?:answer|result|equation|expression|value|formula|function|model)s?\b
    |\bas\ (?:above|before)\b|\babove\ (?:problem|exercise|information|data|table|graph)\b
    |\bthe\ {_PICTURE}\ of\b.*\bis\ shown\b""",
    re.IGNORECASE | re.VERBOSE,
)
_INTRODUCES = re.compile(
    r"""\b(?:for|in|to\ answer)\s+(?:each\s+of\s+)?(?:the\s+)?
    (?:(?:following|next)\s+(?:\w+\s+)?(?:exercises|problems|questions)\b
    |(?:exercises|problems|questions)\s+\#?\d+\s*(?:-|–|—|to|through|and)\s*\#?\d+\b)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Beginnings of texts that belong to several exercises, including this one: they refer to nothing outside."""
# The correct answers of such tasks have many forms, so a short answer proves nothing.
_PROOF_OR_OPINION = re.compile(
    r"""\b(?:prove|disprove|proof|show\ that|verify\ (?:that|the)|derive|justify|explain|discuss|describe|interpret
    |compare\ and|comment\ on|in\ your\ own\ words|what\ do\ you\ (?:think|notice)|do\ you\ (?:think|agree|believe)
    |why\ (?:is|are|do|does|not|or)|give\ (?:an|two|three|some)\ (?:example|reason)s?|sketch|draw|graph\ the|plot\ the
    |construct\ a\ (?:graph|table|plot|chart)|write\ (?:a|an|your\ own)\ (?:essay|paragraph|story|problem)|research)\b
    |^\s*graph\b|\bwhy\s*\?""",
    re.IGNORECASE | re.VERBOSE,
)
_FORMULA = re.compile(r"\$[^$]*\$|\\[A-Za-z]+")
_MATHS = re.compile(r"\$([^$]+)\$")
_PLAIN = re.compile(r"[-−+]?[\d.,]+|[A-Za-z]")
"""A number or a letter, which many problems contain and whose answer it happens to be."""
# With the verbs of exercises, because some texts have hardly any other English word.
_COMMON_ENGLISH = (
    "a an and are as at be by can compute does each find for from has have he how if in is it many more "
    "much of on or she simplify solve than that the then there this to was what when which who will with "
    "evaluate "
)
_ENGLISH = frozenset(_COMMON_ENGLISH.split())
_WORD = re.compile(r"[^\W\d_]+")
MIN_WORDS_TO_JUDGE_LANGUAGE = 8
MOST_CHARACTERS = 20_000
"""No pattern is applied to a longer text: pages are hostile, and some patterns check every pair of places."""


@dataclass(frozen=True)
class Candidate:
    """One row of the candidate table, with absent texts as empty strings."""

    problem: str
    solution: str
    answer: str


def no_solution(row: Candidate) -> str | None:
    """The page gives no solution."""
    return None if row.solution.strip() else "no solution on the page"


def no_short_answer(row: Candidate) -> str | None:
    """The page gives no short answer, and none could be read from the solution."""
    return None if row.answer.strip() else "no short answer on the page"


def unfinished(row: Candidate) -> str | None:
    """The solution neither marks an answer, nor is one, nor mentions the short answer in its last line."""
    found = extract_answer(row.solution)
    if found.is_marked:
        return None
    if found.text is None:
        return f"no answer: {found.rule}"
    lines = row.solution.strip().splitlines()
    # A line without prose is itself the answer.
    if not lines or (len(lines) == 1 and not is_prose(_FORMULA.sub(" ", lines[0]))):
        return None
    answer = _compact(row.answer).strip()
    # As a whole number: the answer 7 is not in 17, nor in 1.7.
    boundary = rf"(?<![\w.]){re.escape(answer)}(?![\w])"
    if answer and re.search(boundary, _compact(lines[-1])):
        return None
    return f"the last line states no answer: {lines[-1][-80:]}"


def _compact(text: str) -> str:
    return text.replace("$", "").replace("−", "-")


def solution_disagrees_with_answer(row: Candidate) -> str | None:
    """The marked answer of the solution certainly differs from the short answer; no opinion is not a reason."""
    found = extract_answer(row.solution)
    if not found.is_marked or not found.text or not row.answer:
        return None
    decision = exact_verdict(row.answer, found.text)
    if decision is not None and decision[0] is Verdict.WRONG:
        return f"the solution ends in {found.text[:80]}, the answer is {row.answer[:80]}"
    return None


def no_question(row: Candidate) -> str | None:
    """No word outside the formulas; `Compute 3+4.` has one."""
    words = _WORD.findall(_FORMULA.sub(" ", row.problem))
    return None if any(len(word) > 2 for word in words) else "no word says what is asked"


def multi_part(row: Candidate) -> str | None:
    """Several questions, choices in a list, or one part of an exercise, which depends on the text before it."""
    # A text that begins with a letter is a part cut out of a longer exercise.
    part = _IS_PART.match(row.problem)
    if part:
        return f"part {part[1]} of an exercise"
    items = _LIST_ITEM.findall(row.problem)
    if len(items) >= 2:
        return f"{len(items)} items in the problem"
    if any(_one_after_the_other(row.problem, *pair) for pair in _INLINE_PARTS) or _one_after_the_other(
        row.solution, *_PARTS_IN_SOLUTION
    ):
        return "parts (a), (b)"
    return "more than two questions" if row.problem.count("?") > 2 else None


def _one_after_the_other(text: str, first: re.Pattern[str], second: re.Pattern[str]) -> bool:
    """True where a match of `second` follows the first match of `first`; linear, as `first.*second` is not."""
    found = first.search(text)
    return found is not None and second.search(text, found.end()) is not None


def refers_to_figure_or_other(row: Candidate) -> str | None:
    """An image, or words that refer to something outside the text."""
    if _IMAGE.search(row.problem) or _IMAGE.search(row.solution):
        return "holds an image"
    # "For the following exercises" would look like a reference, although it introduces this exercise.
    own = _introduced(row.problem)
    found = _REFERS.search(own)
    return f"refers to {found[0][:80]!r}" if found else None


def _introduced(problem: str) -> str:
    """Removes the words that say for which exercises the first sentences apply, if more text follows them."""
    found = _INTRODUCES.search(problem)
    is_first = found is not None and not re.search(r"[.?!]\s", problem[: found.start()])
    follows = found is not None and "\n" in problem[found.end() :].strip()
    return f"{problem[: found.start()]}{problem[found.end() :]}" if found and is_first and follows else problem


def proof_or_opinion(row: Candidate) -> str | None:
    """Asks for a result that a short answer cannot settle."""
    found = _PROOF_OR_OPINION.search(row.problem) or re.search(
        r"\banswers? (?:will|may) vary\b", row.solution, re.IGNORECASE
    )
    return f"asks for {found[0][:80]!r}" if found else None


def copy_is_correct(row: Candidate) -> str | None:
    """Finds a formula of the problem that, repeated as the answer, would be judged correct.

    Such a problem asks for another form of the formula. Only the verifier's rules judge; a copy that only math-verify
    could recognise passes.
    """
    # 22% of the web rows were such exercises when the rule was written.
    for formula in map(str.strip, _MATHS.findall(row.problem)):
        if not _PLAIN.fullmatch(formula):
            outcome = decide(row.answer, extract_answer(f"\\boxed{{{formula}}}"), require_marker=False)
            if isinstance(outcome, Judgement) and outcome.verdict is Verdict.CORRECT:
                return f"{formula[:80]} stands in the problem and equals {row.answer[:80]}"
    return None


def too_long(row: Candidate, limits: LengthLimits) -> str | None:
    """A text over its limit."""
    for name in ("problem", "solution", "answer"):
        characters, limit = len(getattr(row, name)), getattr(limits, f"{name}_characters")
        if characters > limit:
            return f"{name} of {characters} characters, at most {limit}"
    return None


def wrong_language(row: Candidate) -> str | None:
    """Letters outside ASCII, or hardly any of English's most common words; short texts and formulas are not judged."""
    text = _FORMULA.sub(" ", f"{row.problem}\n{row.solution}")
    words = _WORD.findall(text.lower())
    if len(words) < MIN_WORDS_TO_JUDGE_LANGUAGE:
        return None
    # A fifth is allowed, because names and units have such letters in English too.
    foreign = sum(not word.isascii() for word in words)
    if foreign > 0.2 * len(words):
        return f"{foreign} of {len(words)} words hold other letters"
    # Single letters are variables, and say nothing about a language.
    longer = [word for word in words if len(word) > 1]
    known = sum(word in _ENGLISH for word in longer)
    if len(longer) >= MIN_WORDS_TO_JUDGE_LANGUAGE and known < 0.05 * len(longer):
        return f"{known} of {len(longer)} words are common English"
    return None


RULES: dict[str, Callable[[Candidate], str | None]] = {
    "no_solution": no_solution,
    "no_short_answer": no_short_answer,
    "unfinished": unfinished,
    "solution_disagrees_with_answer": solution_disagrees_with_answer,
    "no_question": no_question,
    "multi_part": multi_part,
    "refers_to_figure_or_other": refers_to_figure_or_other,
    "proof_or_opinion": proof_or_opinion,
    "copy_is_correct": copy_is_correct,
    "wrong_language": wrong_language,
}
"""Switchable rules in the order in which they apply: the first that objects gives the reason."""
