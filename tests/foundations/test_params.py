"""Parameter files: the error for each mistake names the key and the remedy."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from stages.foundations.errors import UserError
from stages.foundations.params import StrictParams, load_section, load_value


class Small(StrictParams):
    kind: Literal["small"]
    rows: int = Field(ge=1)


class Large(StrictParams):
    kind: Literal["large"]


Either = Annotated[Small | Large, Field(discriminator="kind")]


def write(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_section_is_read_into_its_model(tmp_path):
    path = write(tmp_path, "outer: {inner: {kind: small, rows: 3}}\n")
    assert load_section(path, "outer.inner", Either) == Small(kind="small", rows=3)
    assert load_value(path, "outer.inner.rows") == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("part: {kind: small}", r"part\.small\.rows: missing; add it"),
        ("part: {kind: small, rows: 1, colour: red}", r"part\.small\.colour: unknown key"),
        ("part: {kind: small, rows: 0}", r"part\.small\.rows: .*greater than or equal to 1.*given: 0"),
        ("part: {kind: tiny}", r"part: .*'tiny'.*'small', 'large'"),
        ("other: 1", r"has no `part`; at that level it has: other"),
        ("part: [", "not valid YAML"),
        ("part: " + "[" * 50_000, "not valid YAML: line 1: more than 100 lists or mappings"),
        ("part: " + "[" * 50_000 + "]" * 50_000, "more than 100 lists or mappings"),
        ("- " * 50_000 + "1", "more than 100 lists or mappings"),
        ("? " * 50_000 + "1", "more than 100 lists or mappings"),
        ("part: {kind: small, rows: 1, rows: 2}", 'line 1, column 30: found duplicate key "rows": remove one'),
        ("part:\n  kind: small\nother: 1\npart: 2\n", 'line 4, column 1: found duplicate key "part"'),
        ("- 1", "must hold a mapping"),
        (b"part: \xff", "not valid YAML: .*can't decode byte 0xff"),
        ("part: " + "7" * 5_000, "not valid YAML: .*4300 digits"),
        ("part: 2001-13-45", "not valid YAML: .*month"),
        ("part: \0", "not valid YAML: .*control characters"),
    ],
)
def test_a_mistake_is_told_with_its_key(tmp_path, text, told):
    with pytest.raises(UserError, match=told):
        load_section(write(tmp_path, text), "part", Either)


def test_what_a_mapping_takes_over_it_may_override(tmp_path):
    text = "one: &one {kind: small, rows: 1}\ntwo: &two {<<: *one, rows: 2}\nthree: {<<: [*two, *one], rows: 3}\n"
    path = write(tmp_path, text)
    assert [load_value(path, f"{name}.rows") for name in ("one", "two", "three")] == [1, 2, 3]


def test_a_missing_file_is_told_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match="retrace use laptop"):
        load_value(tmp_path / "params.yaml", "seed")
