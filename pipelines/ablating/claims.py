"""All claims of all ablations in one table: what the paper has, what each world here found, and the verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipelines.ablating.definition import Ablation, ablation_names, read_ablation
from pipelines.ablating.plan import plan_runs
from pipelines.ablating.results import Judged
from pipelines.ablating.wording import ABSENT, Table, published, told_claim, told_difference
from pipelines.ablating.writing import Findings, markdown_table
from stages.foundations.errors import UserError

Place = tuple[str, str]
"""The paper's reference and the claim: ablations of one paper in several worlds share both words."""


def show_claims(root: Path, state: Path) -> str:
    """The table of all finished runs as Markdown. UserError when nothing is finished."""
    found = _findings(root, state)
    if not found:
        raise UserError("no ablation has a finished run: run `retrace ablate NAME`")
    return "\n".join(markdown_table(claims_by_world(found))) + "\n"


def claims_by_world(found: Iterable[tuple[Ablation, Sequence[Judged]]]) -> Table:
    """A row for each claim, a column for each world (the first word of the recipe's name), papers together."""
    cells: dict[Place, dict[str, str]] = defaultdict(dict)
    of_paper: dict[Place, str] = {}
    worlds: list[str] = []
    for ablation, judged in found:
        world = ablation.recipe.partition("-")[0]
        worlds += [world] if world not in worlds else []
        for one in judged:
            place = ablation.paper.reference, told_claim(ablation, one.claimed)
            cells[place][world] = _cell(ablation, one)
            of_paper.setdefault(place, published(one.published, True))
    papers = list(dict.fromkeys(reference for reference, _ in cells))
    rows = [
        [*place, of_paper[place], *(cells[place].get(world, ABSENT) for world in worlds)]
        for paper in papers
        for place in cells
        if place[0] == paper
    ]
    return Table("Claims", ["paper", "claim", "there", *worlds], rows)


def _findings(root: Path, state: Path) -> list[tuple[Ablation, list[Judged]]]:
    found = []
    for name in ablation_names(root):
        ablation = read_ablation(root, name)
        try:
            found.append((ablation, Findings(ablation, state, plan_runs(root, ablation, None, None)).judged))
        except UserError:
            continue  # none of its runs is finished, or it is not whole: the table says what there is
    return found


def _cell(ablation: Ablation, one: Judged) -> str:
    if one.found.mean is None:
        return ABSENT
    return f"{told_difference(one.found, ablation.metrics[one.claimed.metric].unit)}: {one.verdict}"
