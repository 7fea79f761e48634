"""`retrace rollouts`: the responses of a round as a page that filters, sorts and shows them with their group.

The page is a folder that needs no server: index.html, a script, and the rollouts in pieces of PIECE rows. The pieces
are scripts too, and are loaded when shown. The columns for filters, a few numbers per row, are loaded at once, so
100,000 rollouts open as fast as ten. All text is inserted as text, never as HTML, because responses are untrusted.

A response of several turns is shown in segments, what the environment wrote set off from what the policy wrote.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder
from stages.foundations.machine import PROJECT

if TYPE_CHECKING:
    import pyarrow

FOLDER = Path(__file__).parent
PIECE = 400
"""Rows of a piece: it loads in a second with responses of 10,000 tokens, and a small round has few files."""
DIGITS = 3
"""Digits of a log-probability on the page."""
MEANINGS = {
    "": "log-probability: the darker, the less likely it was when it was drawn",
    "gap": "their log-probability under {} minus the sampler's, blue above 0, orange below ({:,} responses measured)",
    "entropy": "the entropy of {} before them: the darker, the less sure it is ({:,} responses measured)",
}


def rollouts(
    name: Annotated[
        str, typer.Argument(metavar="ROUND_OR_FILE", help="a round of this project (rl_3), or a rollouts table")
    ],
    out: Annotated[
        Path | None, typer.Option(help="folder to write (default: reports/rollouts/NAME)", show_default=False)
    ] = None,
    colour: Annotated[str, typer.Option(help="shade tokens by `gap` or `entropy` under a policy")] = "",
    policy: Annotated[Path | None, typer.Option(help="folder of that policy (default: the round's result)")] = None,
    most: Annotated[int, typer.Option(min=1, help="approximate number of responses that --colour measures")] = 500,
) -> None:
    """Make a page to read a round's rollouts.

    You can filter by verdict, reward, length, step and text, and sort. Each response is shown next to the others of its
    group, with its answer marked. Its tokens are shaded by their log-probability. `--colour gap` shades them by the
    difference between a policy's and the sampler's log-probability, `--colour entropy` by the policy's entropy.
    """
    if colour not in MEANINGS:
        raise UserError(f"--colour {colour!r}: give gap or entropy")
    table = PROJECT / f"data/rollouts/{name}.parquet"
    is_named = "/" not in name and table.is_file()
    table = table if is_named else Path(name)
    if not table.is_file():
        known = sorted(path.stem for path in (PROJECT / "data/rollouts").glob("*.parquet")) or ["none has run"]
        raise UserError(
            f"{name!r} is neither a round with rollouts here ({', '.join(known)}) nor a Parquet file: run "
            f"`dvc repro rl_round@{name}` or `dvc pull`"
        )
    out = out or PROJECT / "reports/rollouts" / table.stem
    # Only an earlier page is replaced: --out may name another folder of the user by mistake.
    if out.exists() and not (out / "index.html").is_file():
        raise UserError(f"--out {out} exists and is no such page: name a new folder, because nothing is overwritten")
    policy, values = policy or PROJECT / "data/policies" / table.stem, {}
    problems, vocabulary = problems_by_id(PROJECT), _vocabulary(policy)
    if colour:
        from pipelines.rollouts.measuring import measure

        values = measure(colour, table, problems, policy, PROJECT / "params.yaml", most)
    legend = MEANINGS[colour].format(policy.name, len(values))
    with replace_folder(out) as folder:
        rows = write_page(table, problems, vocabulary, folder, table.stem, legend, colour, values)
    typer.echo(f"{rows:,} rollouts: open {out / 'index.html'}")


def problems_by_id(root: Path) -> dict[str, tuple[str, str]]:
    """Returns problem and gold answer by id, from all existing tables that a round may train on."""
    from stages.foundations.tables import open_table

    problems: dict[str, tuple[str, str]] = {}
    for name, key in (("problems/train", "problem_id"), ("web/solutions", "candidate_id")):
        file = root / f"data/{name}.parquet"
        if file.is_file():
            with open_table(file) as table:
                columns = table.schema_arrow.names
                key = key if key in columns else "problem_id"
                rows = (
                    table.read([key, "problem", "answer"]).to_pylist()
                    if {key, "problem", "answer"} <= set(columns)
                    else []
                )
            problems |= {row[key]: (row["problem"], row["answer"]) for row in rows}
    return problems


def _vocabulary(policy: Path) -> Any:
    """Returns the tokenizer of a policy folder; None if it is missing, and tokens are then not shaded."""
    # Only the Rust library, because transformers takes seconds to import.
    from tokenizers import Tokenizer

    file = policy / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.is_file() else None


def _thought_markers(recipe: Path) -> tuple[str, str]:
    from stages.engines.verifier.params import VerifierParams
    from stages.engines.verifier.verifier import thought_markers
    from stages.foundations.params import read_yaml, validate_section

    section = read_yaml(recipe).get("verifier") if recipe.is_file() else None
    return thought_markers(section and validate_section(section, "verifier", VerifierParams, recipe))


@dataclass
class _Index:
    """The columns by which the page filters and sorts: a list for each column, with an entry for each row."""

    problem: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    verdict: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    """1 for a truncated response, 2 for one that was trained on, and their sum."""


@dataclass
class _EpisodeIndex:
    """The same for tables of responses of several turns."""

    turns: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    faulty: list[int] = field(default_factory=list)
    """1 where the environment failed."""

    def add(self, row: Mapping[str, Any]) -> None:
        # A row without an episode has nulls: it is one turn without a call.
        self.turns.append(row["turns"] or 1)
        self.calls.append(row["calls"] or 0)
        self.failed.append(row["failed_calls"] or 0)
        self.faulty.append(int(bool(row["environment_fault"])))


def write_page(
    table: Path,
    problems: Mapping[str, tuple[str, str]],
    vocabulary: Any,
    folder: Path,
    title: str,
    legend: str,
    colour: str,
    values: Mapping[int, list[float]],
) -> int:
    """Writes the page of a rollouts table into `folder`; returns the number of its rows.

    `problems` has problem and gold answer by id; `vocabulary` is a tokenizer of `tokenizers` or None. With `colour`,
    tokens are shaded by `values`, which has the values of a response by its row. UserError when the file is not such a
    table. Equal arguments give equal bytes.
    """
    import pyarrow
    import pyarrow.parquet

    from stages.foundations.tables import ROLLOUT

    markers = _thought_markers(PROJECT / "params.yaml")
    # Texts are written into pieces, numbers into the index, which the page loads at once.
    index, episodes, named, verdicts = _Index(), _EpisodeIndex(), {}, {}
    pieces: dict[int, str] = {}
    group, last, rows = -1, None, 0
    try:
        file = pyarrow.parquet.ParquetFile(table, page_checksum_verification=True)
        missing = [name for name in ROLLOUT.names if name not in file.schema_arrow.names]
        if missing:
            raise UserError(f"{table} is no table of rollouts: it has no column {', '.join(missing)}")
        has_episodes = "turns" in file.schema_arrow.names
        for number, batch in enumerate(_batches(file)):
            shown = []
            for row in batch.to_pylist():
                # Rows of a group are adjacent, even if a later step draws the same problem again.
                here = (row["step"], row["problem_id"])
                group, last = (group if here == last and row["sample_index"] else group + 1), here
                index.problem.append(named.setdefault(row["problem_id"], len(named)))
                index.verdict.append(verdicts.setdefault(row["verdict"], len(verdicts)))
                index.step.append(row["step"])
                index.version.append(row["policy_version"])
                index.reward.append(round(row["reward"], 4))
                index.tokens.append(row["response_tokens"])
                index.group.append(group)
                index.flags.append(row["is_truncated"] + 2 * row["is_trained"])
                if has_episodes:
                    episodes.add(row)
                if vocabulary is not None:
                    for token in row["token_ids"]:
                        if token not in pieces:
                            pieces[token] = vocabulary.decode([token], skip_special_tokens=False)
                shown.append(_shown(row, markers, vocabulary))
                if measured := values.get(len(index.step) - 1):
                    shown[-1].append([round(one, DIGITS) for one in measured])
            _write_script(folder / f"rows-{number}.js", f"retraceRows({number}, {json.dumps(shown)});")
            rows += len(shown)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{table} cannot be read as Parquet ({error}): make it again, or `dvc checkout`") from error
    content = {
        "piece": PIECE,
        "problems": [[name, *problems.get(name, ("", ""))] for name in named],
        "verdicts": list(verdicts),
        "pieces": pieces,
        "colour": colour,
        **vars(index),
        **(vars(episodes) if has_episodes else {}),
    }
    _write_script(folder / "index.js", f"window.RETRACE_ROLLOUTS = {json.dumps(content, separators=(',', ':'))};")
    shutil.copyfile(FOLDER / "rollouts.js", folder / "rollouts.js")
    html = rollouts_page(title, rows, list(verdicts), legend, has_episodes)
    (folder / "index.html").write_text(html, encoding="utf-8")
    return rows


RANGES = {"reward": "Reward", "tokens": "Tokens", "step": "Step", "turns": "Turns", "failed": "Failed calls"}
"""Numbers that a row is filtered by, from and to; `turns` and `failed` only where responses have several turns."""
KEPT = {"trained": "trained on", "left": "left out", "cut": "truncated"}
GROUPS = {"mixed": "right and wrong", "right": "all right", "wrong": "none right"}
ORDERS = {
    "": "as drawn",
    "long": "longest first",
    "short": "shortest first",
    "low": "lowest reward first",
    "high": "highest reward first",
    "turns": "most turns first",
    "failed": "most failed calls first",
    "faulty": "failed environments first",
}
OF_EPISODES = ("turns", "failed", "faulty")


def rollouts_page(title: str, rows: int, verdicts: list[str], legend: str, has_episodes: bool) -> str:
    """Returns the page: a form of filters, whose names rollouts.js reads, and the place of the rollouts."""
    from stages.pages.page import count, html, page, paragraph

    def choice(label: str, name: str, options: Mapping[str, str]) -> Any:
        listed = [html('<option value="{}">{}</option>', value, words) for value, words in options.items()]
        return html('<label>{} <select name="{}">{}</select></label>\n', label, name, listed)

    def between(name: str) -> Any:
        least = html(' step="any"') if name == "reward" else html(' min="0"')
        field = '<input name="{}_{}" type="number"{} placeholder="{}" aria-label="{} {}">'
        ends = [html(field, name, end, least, end, RANGES[name], end) for end in ("from", "to")]
        return html("<label>{} <span>{}</span></label>\n", RANGES[name], ends)

    known = {"": "all", "1": "failed", "0": "did not fail"}
    fields = [
        choice("Verdict", "verdict", {"": "all"} | {verdict: verdict for verdict in verdicts}),
        [between(name) for name in RANGES if has_episodes or name not in OF_EPISODES],
        choice("Environment", "fault", known) if has_episodes else "",
        html('<label>Problem, or its id, contains <input name="text" type="search"></label>\n'),
        choice("Groups", "groups", {"": "all"} | GROUPS),
        choice("Kept", "kept", {"": "all"} | KEPT),
        choice("Order", "order", {key: ORDERS[key] for key in ORDERS if has_episodes or key not in OF_EPISODES}),
    ]
    written = '<span>written by the policy</span> <span class="observed">written by the environment</span>'
    shade = '<label><input id="shade" name="shade" value="1" type="checkbox" form="filter"> shade tokens by {}</label>'
    form = '<form id="filter" class="filter">\n{}<button type="reset">Clear</button>\n</form>\n{}{}'
    told = "This page needs scripts, and the files beside it, to show {} rollouts."
    found = (
        '<p id="count" aria-live="polite"></p>\n<div id="list">{}</div>\n<p class="pager">'
        '<button id="before" type="button">Previous</button> <button id="after" type="button">Next</button></p>\n'
    )
    filters = html(
        form, fields, paragraph(shade, legend, kind="legend"), paragraph(written, kind="legend") if has_episodes else ""
    )
    sections = [
        ("result", "Filter", "", filters),
        ("rows", "Rollouts", "", html(found, paragraph(told, count(rows), kind="absent"))),
    ]
    return page(f"{title}: rollouts", "Rollouts", sections, scripts=["index.js", "rollouts.js"])


def _batches(file: pyarrow.parquet.ParquetFile) -> Iterator[pyarrow.Table]:
    """Yields tables of PIECE rows, independent of the file's row groups."""
    import pyarrow

    kept = None
    for batch in file.iter_batches(batch_size=PIECE):
        table = pyarrow.Table.from_batches([batch])
        kept = table if kept is None else pyarrow.concat_tables([kept, table])
        while kept.num_rows >= PIECE:
            yield kept.slice(0, PIECE)
            kept = kept.slice(PIECE)
    if kept is not None and kept.num_rows:
        yield kept


def _shown(row: Mapping[str, Any], markers: tuple[str, str], vocabulary: Any) -> list[Any]:
    """Returns the response, its extracted answer, and its tokens with log-probabilities if they can be shown.

    A response of several turns is an object with its segments.
    """
    from stages.algorithms.answers.extraction import extract_answer

    has_episode = row.get("observed") is not None
    # Only what was judged: an observation may hold a box too.
    judged = row["final_response"] if has_episode else row["response"]
    answer = extract_answer(judged or "", thought_markers=markers).text or ""
    shown = _episode(row, vocabulary) if has_episode else row["response"]
    if vocabulary is None:
        return [shown, answer]
    return [shown, answer, row["token_ids"], [round(one, DIGITS) for one in row["rollout_logprobs"]]]


def _episode(row: Mapping[str, Any], vocabulary: Any) -> dict[str, Any]:
    """Returns the course of a response of several turns, with segments [text, 1 if observed]."""
    observed, tokens = row["observed"], row["token_ids"]
    segments = [[row["response"], 0]]
    if vocabulary is not None:
        cuts = [0, *observed, len(tokens)]
        # Policy and environment alternate: every second stretch between two cuts was observed.
        stretches = [(start, end, place % 2) for place, (start, end) in enumerate(pairwise(cuts)) if start < end]
        # Special tokens stay, for they show where a turn ends.
        segments = [[vocabulary.decode(tokens[a:b], skip_special_tokens=False), seen] for a, b, seen in stretches]
    reward = row["environment_reward"]
    return {
        "segments": segments,
        "observed": observed,
        "ending": row["ending"] or "",
        "reward": None if reward is None else round(reward, 4),
        "fault": row["environment_fault"] or "",
    }


def _write_script(path: Path, text: str) -> None:
    # `json.dumps` writes ASCII, so no text in it can end a line or a script.
    path.write_text(text + "\n", encoding="ascii")
