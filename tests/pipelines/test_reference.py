"""The reference pages: equal to what the code gives, with every key, metric and column described."""

import ast
import re

import pytest
from pydantic import Field

from pipelines.cli import app
from pipelines.commands import reference
from stages.foundations.machine import PROJECT
from stages.foundations.params import StrictParams

INTERNAL = ("sum/", "by_staleness/", "pruning/pruned_mass_max")
"""Sums that the ranks of a trainer exchange; a step's row has what is made of them."""
NOT_OF_A_STAGE = (
    "stages/engines",
    "stages/report",
    "stages/images/t2i_report",
    "stages/pages",
    "stages/algorithms/answers",
)
NOT_OF_A_STAGE += ("stages/collect_web/sources.py", "stages/foundations/page_formats.py")  # content types
DOCS = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])
OF_CURVE = re.compile(r"(_(first|last|best|mean|max|min))+$")


@pytest.fixture(scope="module")
def pages():
    return reference.pages(app)


@pytest.mark.parametrize("name", ["cli.md", "params.md", "tables.md", "metrics.md"])
def test_a_page_is_what_the_code_gives(pages, name):
    assert (reference.FOLDER / name).read_text() == pages[name], "run `retrace reference`"


def test_the_picture_of_the_folders_is_what_the_code_gives():
    assert reference.HOUSE.read_text() == reference.house_picture(), "run `retrace reference`"


def test_links_lead_to_headings_of_their_page(pages):
    for name, text in pages.items():
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert len(set(headings)) == len(headings), f"{name} has a heading twice"
        there = {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert {link for link in re.findall(r"\]\(#([^)]*)\)", text)} <= there, name


class Small(StrictParams):
    """Few."""

    kind: str = "small"
    size: int = Field(ge=1, lt=5)
    """How many; at least
    one."""
    words: list[str] | None = None


def test_the_tables_of_a_model_by_hand():
    assert list(reference._model(Small, "part.NAME", {Small: "`part.NAME`"})) == [
        "### `part.NAME`\n",
        "Few.",
        "",
        "| Key | Value | Meaning |",
        "| --- | --- | --- |",
        "| `kind` | text | *optional* |",
        "| `size` | whole number, at least 1, less than 5 | How many; at least one. |",
        "| `words` | list of text | *optional* |",
        "",
    ]


def test_every_key_has_a_meaning_or_a_table(pages):
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", pages["params.md"], re.MULTILINE)
    assert len(rows) > 500
    assert not [name for name, text in rows if "](#" not in text and re.search(r"\| *(\*optional\*)?$", text)], (
        "write a sentence below the field"
    )


def metrics_in(source):
    """Names of metrics in Python code: keys of a dictionary, with `*` for what is filled in."""

    def text(node):
        if isinstance(node, ast.JoinedStr):
            return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""

    for node in ast.walk(ast.parse(source)):
        keys = node.keys if isinstance(node, ast.Dict) else [node.key] if isinstance(node, ast.DictComp) else []
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        yield from (name for key in keys if re.fullmatch(r"[a-z][a-z_0-9*]*(/[a-z_0-9*]+)+", name := text(key)))


def test_every_metric_is_described():
    described = [row["metric"] for row in reference.rows_of("metrics")]
    patterns = [re.sub("[A-Z]+", ".+", name) for name in described]
    found = {
        name
        for path in (PROJECT / "stages").rglob("*.py")
        # Declarations name tables in the same form.
        if path.name != "stage.py" and not path.relative_to(PROJECT).as_posix().startswith(NOT_OF_A_STAGE)
        for name in metrics_in(path.read_text())
        if not name.startswith(INTERNAL)
    }
    assert {"accuracy/mean", "reward/part_*", "refl/*/low"} <= found and len(found) > 150
    unknown = [
        name
        for name in sorted(found)
        if not any(re.fullmatch(one, form) for one in patterns for form in (name, OF_CURVE.sub("", name)))
        # What is filled in may be listed by its values.
        and not any(re.fullmatch(name.replace("*", ".+"), one) for one in described)
    ]
    assert not unknown, "describe them in pipelines/reference/metrics.tsv"


def test_every_stage_with_metrics_and_every_column_are_real():
    from stages.foundations import tables

    stages = {row["stage"] for row in reference.rows_of("metrics")} - {"all stages", "all data stages"}
    assert stages <= set(reference.read_definitions(PROJECT / "dvc.yaml"))
    schemas = [one for one in vars(tables).values() if isinstance(one, tables.TableSchema)]
    there = {column for one in schemas for column in (*one.columns, *one.optional)}
    there |= {f"{one.name}.{column}" for one in schemas for column in (*one.columns, *one.optional)}
    assert {row["column"] for row in reference.rows_of("columns")} <= there


def commands_in(text):
    """Calls of `retrace` in the code of a page, as lists of words."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(retrace [^`\n]*)`", text)
    for line in lines:
        if call := re.match(r"\s*(?:\.venv/bin/)?retrace ([a-z].*)", line):
            # A comment, a pipe or a second command ends it.
            yield re.split(r"\s#|[|;]| && ", call[1])[0].split()


def test_the_commands_of_a_page_by_hand():
    text = "`retrace plan x --gpu H100`\n```bash\nretrace verify --json  # all\n  retrace compare a b | less\nls\n```\n"
    assert [*commands_in(text)] == [["verify", "--json"], ["compare", "a", "b"], ["plan", "x", "--gpu", "H100"]]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_every_command_in_the_docs_exists_with_its_options(pages, page):
    listed = dict(re.findall(r"^## `retrace (.*?)`$(.*?)(?=^## |\Z)", pages["cli.md"], re.MULTILINE | re.DOTALL))
    for words in commands_in(page.read_text()):
        name = next((one for one in (" ".join(words[:2]), words[0]) if one in listed), None)
        is_group = any(one.startswith(f"{words[0]} ") for one in listed)
        assert name or is_group, f"there is no `retrace {' '.join(words)}`"
        for option in (word.partition("=")[0] for word in words if word.startswith("--") and word != "--help"):
            assert f"`{option}`" in listed.get(name, ""), f"`retrace {name}` has no {option}"
