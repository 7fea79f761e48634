"""collect: each real origin (a server on loopback, files, generators), and each way it can fail.

The last test reads every file of the shared mirror through a declarative field map.
"""

import gzip
import hashlib
import json
from decimal import Decimal
from pathlib import Path

import psutil
import pyarrow
import pyarrow.parquet
import pytest

from stages.algorithms.digit_tasks import read_problem
from stages.collect.run import collect_source
from stages.collect.stage import SourceParams
from stages.foundations.errors import UserError
from stages.foundations.machine import MIRROR_VARIABLE, mirror_folder
from stages.foundations.params import validate_section
from stages.foundations.tables import DROPPED, PROBLEM, read_table
from tests.fakes.file_server import MIRROR, serving
from tests.fakes.one_stage import run_stage

ROWS = [{"question": "What is 1+1?", "answer": "1+1=<<1+1=2>>2\n#### 2"}, {"question": "2+2?", "answer": "#### 4"}]
GSM8K = {
    "problem": "question",
    "answer": {"kind": "after", "field": "answer", "marker": "####"},
    "solution": {"kind": "before", "field": "answer", "marker": "####", "strip": ["<<[^>]*>>"]},
}
PLAIN = {"problem": "problem", "answer": "answer", "solution": None}
CONTENT = {"format": "jsonl", "fields": PLAIN, "only": {}, "max_rows": None}


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def local(tmp_path, content, file_format="jsonl", fields=PLAIN, **changes):
    path = tmp_path / "rows"
    path.write_bytes(content)
    pinned = {"path": str(path), "sha256": hashlib.sha256(content).hexdigest()}
    return CONTENT | {"kind": "local", **pinned, "format": file_format, "fields": fields, **changes}


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch):
    monkeypatch.setenv(MIRROR_VARIABLE, "")


def collect(tmp_path, origin):
    sections = {"sources": {"some": {"role": "train", "licence": "MIT", "from": origin}}}
    metrics = run_stage("collect@some", tmp_path / "out", sections)
    return read_table(tmp_path / "out/problems", PROBLEM), read_table(tmp_path / "out/dropped", DROPPED), metrics


@pytest.fixture
def server(tmp_path):
    """Serves `<tmp>/site` on loopback."""
    site = tmp_path / "site"
    site.mkdir()

    with serving(site) as running:
        running.site = site
        yield running


def url_origin(server, content, sha256=None):
    (server.site / "rows.jsonl").write_bytes(content)
    url = f"http://127.0.0.1:{server.server_port}/rows.jsonl"
    sha256 = sha256 or hashlib.sha256(content).hexdigest()
    return CONTENT | {"kind": "url", "url": url, "sha256": sha256, "fields": GSM8K}


def make_mirror(tmp_path, monkeypatch, origin, content):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / origin["sha256"]).write_bytes(content)
    monkeypatch.setenv(MIRROR_VARIABLE, str(tmp_path / "mirror"))


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_url_is_downloaded_once_and_gsm8k_rows_are_read(tmp_path, server):
    origin = url_origin(server, lines(ROWS))
    problems, dropped, metrics = collect(tmp_path, origin)
    assert problems.to_dict("records")[0] == {
        "problem_id": "some/0",
        "source": "some",
        "problem": "What is 1+1?",
        "answer": "2",
        "solution": "1+1=2",
        "licence": "MIT",
    }
    assert problems["solution"].isna().tolist() == [False, True]
    assert dropped.empty and metrics == {"rows/in": 2, "rows/kept": 2}
    first = (tmp_path / "out" / "problems").read_bytes()
    collect(tmp_path, origin)
    assert server.handler.requests == 1
    assert (tmp_path / "out" / "problems").read_bytes() == first
    assert files_under(tmp_path / "state") == [f"downloads/{origin['sha256']}"]


def test_wrong_bytes_are_refused_and_nothing_stays(tmp_path, server):
    content = lines(ROWS)
    collect(tmp_path, url_origin(server, content))
    before = (tmp_path / "out" / "problems").read_bytes()
    kept = files_under(tmp_path / "state")
    with pytest.raises(UserError) as error:
        collect(tmp_path, url_origin(server, content, sha256="0" * 64))
    assert hashlib.sha256(content).hexdigest() in str(error.value) and "0" * 64 in str(error.value)
    assert files_under(tmp_path / "state") == kept
    assert (tmp_path / "out" / "problems").read_bytes() == before


def test_damaged_download_is_fetched_again(tmp_path, server):
    origin = url_origin(server, lines(ROWS))
    place = tmp_path / "state" / "downloads" / origin["sha256"]
    place.parent.mkdir(parents=True)
    place.write_text("half")
    assert len(collect(tmp_path, origin)[0]) == 2
    assert place.read_bytes() == lines(ROWS)


def test_unreachable_url_names_it_and_the_mirror(tmp_path, server, monkeypatch):
    origin = url_origin(server, lines(ROWS))
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:\d+/rows\.jsonl cannot be downloaded.*mirror folder"):
        collect(tmp_path, origin)
    assert files_under(tmp_path / "state") == []
    make_mirror(tmp_path, monkeypatch, origin, lines(ROWS))
    assert len(collect(tmp_path, origin)[0]) == 2


def test_not_found_and_cut_off_downloads(tmp_path, server):
    origin = url_origin(server, lines(ROWS))
    (server.site / "rows.jsonl").unlink()
    with pytest.raises(UserError, match=r"rows\.jsonl cannot be downloaded \(HTTP Error 404: .*mirror folder"):
        collect(tmp_path, origin)

    def cut_off(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"x" * 10)

    server.handler.do_GET = cut_off
    with pytest.raises(UserError, match="broke off after 10 of 1000 bytes"):
        collect(tmp_path, origin)
    assert files_under(tmp_path / "state") == []


def test_mirror_with_damaged_copy(tmp_path, server, monkeypatch):
    origin = url_origin(server, lines(ROWS))
    make_mirror(tmp_path, monkeypatch, origin, b"other")
    with pytest.raises(UserError, match="the copy is damaged"):
        collect(tmp_path, origin)
    assert server.handler.requests == 0
    monkeypatch.setenv(MIRROR_VARIABLE, "")
    assert len(collect(tmp_path, origin)[0]) == 2


def test_the_mirror_is_named_by_the_variable_the_machine_or_its_place(tmp_path, monkeypatch):
    project, others = tmp_path / "project", [tmp_path / name for name in ("one", "two", "shared/data/mirror")]
    for folder in (project, *others):
        folder.mkdir(parents=True)
    monkeypatch.delenv(MIRROR_VARIABLE)
    assert mirror_folder(project).samefile(others[2])
    (project / "machine.yaml").write_text("mirror: ../two\n")
    assert mirror_folder(project).samefile(others[1])
    monkeypatch.setenv(MIRROR_VARIABLE, str(others[0]))
    assert mirror_folder(project).samefile(others[0])
    monkeypatch.setenv(MIRROR_VARIABLE, "")
    assert mirror_folder(project) is None
    monkeypatch.delenv(MIRROR_VARIABLE)
    for content, said in (("mirror: ../none", "no folder here"), ("miror: x", "may only hold"), ("a: [", "no YAML")):
        (project / "machine.yaml").write_text(content)
        with pytest.raises(UserError, match=rf"machine\.yaml.*{said}"):
            mirror_folder(project)


def test_malformed_rows_are_dropped_with_reasons(tmp_path):
    content = lines([{"problem": "1+1?", "answer": 2}, ["a list"], {"problem": "no answer"}, {"answer": "1"}])
    content += b'{"problem": "cut of\n' + b'{"problem": "\xff", "answer": "1"}\n'
    content += lines([{"problem": "empty", "answer": " "}, {"problem": {"a": 1}, "answer": "1"}])
    content += b'{"problem": "\\ud800 half", "answer": "1"}\n'
    problems, dropped, metrics = collect(tmp_path, local(tmp_path, content))
    assert problems[["problem_id", "answer"]].values.tolist() == [["some/0", "2"]]
    assert metrics == {
        "rows/in": 9,
        "rows/kept": 1,
        "dropped/malformed_row": 4,
        "dropped/missing_answer": 2,
        "dropped/missing_problem": 1,
        "dropped/unusable_problem": 1,
    }
    assert dropped["row_id"].tolist() == [f"some/{i}" for i in range(1, 9)]
    assert json.loads(dropped["row"][1]) == {"problem": "no answer"}


def test_no_usable_row_is_an_error_that_says_why(tmp_path):
    content = lines([{"Question": "1+1?", "Answer": "2"}])
    with pytest.raises(
        UserError,
        match=r"no usable row out of 1 \(missing_problem 1; the first: no field `problem`; "
        r"the row has: Question, Answer\)",
    ):
        collect(tmp_path, local(tmp_path, content))
    with pytest.raises(UserError, match="the file is empty"):
        collect(tmp_path, local(tmp_path, b""))
    fields = {**PLAIN, "solution": "sollution"}
    with pytest.raises(UserError, match=r"no row has a solution where sources\.some\.from\.fields\.solution says"):
        collect(tmp_path, local(tmp_path, lines([{"problem": "p", "answer": "1"}]), fields=fields))


def test_formats_hold_the_same_rows(tmp_path):
    rows = [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "table")
    csv = "problem,answer\n" + "".join(f"{row['problem']},{row['answer']}\n" for row in rows)
    contents = {
        "jsonl": lines(rows),
        "json": json.dumps(rows).encode(),
        "parquet": (tmp_path / "table").read_bytes(),
        "csv": csv.encode(),
    }
    tables = [collect(tmp_path, local(tmp_path, content, name))[0] for name, content in contents.items()]
    tables.append(collect(tmp_path, local(tmp_path, gzip.compress(lines(rows))))[0])
    assert all(table.equals(tables[0]) for table in tables) and len(tables[0]) == 3
    assert len(collect(tmp_path, local(tmp_path, lines(rows), max_rows=2))[0]) == 2
    for name in ("json", "parquet"):
        with pytest.raises(UserError, match="correct `format`"):
            collect(tmp_path, local(tmp_path, b"<html>", name))


def test_csv_with_ragged_rows(tmp_path):
    problems, dropped, _ = collect(tmp_path, local(tmp_path, b'problem,answer\n"1, 2?",3\nshort\na,b,c\n', "csv"))
    assert problems["problem"].tolist() == ["1, 2?"] and dropped["reason"].tolist() == ["malformed_row"] * 2


GOOD = b'{"problem": "1+1?", "answer": "2"}\n'


@pytest.mark.parametrize(
    "line",
    [
        b'{"problem": ' + b"[" * 100_000,
        b'{"problem": "p", "answer": "1", "x": ' + b"[" * 600 + b"]" * 600 + b"}",
        b'{"problem": "p", "answer": "1", "x": ' + b'{"a": ' * 400 + b"1" + b"}" * 401,
        b'{"problem": "p", "answer": "1", "answer": "2"}',
        b'{"problem": "p", "answer": "1", "meta": [{"a": 1, "a": 2}]}',
    ],
)
def test_a_hostile_line_costs_only_itself(tmp_path, line):
    problems, dropped, _ = collect(tmp_path, local(tmp_path, GOOD + line + b"\n" + GOOD))
    assert problems["problem_id"].tolist() == ["some/0", "some/2"]
    assert dropped[["row_id", "reason"]].values.tolist() == [["some/1", "malformed_row"]]
    if len(line) < 1_000:
        problems, dropped, _ = collect(tmp_path, local(tmp_path, b"[" + GOOD + b"," + line + b"]", "json"))
        assert len(problems) == 1 and dropped["reason"].tolist() == ["malformed_row"]


@pytest.mark.parametrize("file_format", ["jsonl", "json"])
def test_an_integer_of_any_length_is_read(tmp_path, file_format):
    row = b'{"problem": "p", "answer": ' + b"9" * 5_000 + b"}"
    content = row if file_format == "jsonl" else b"[" + row + b"]"
    assert collect(tmp_path, local(tmp_path, content, file_format))[0]["answer"].tolist() == ["9" * 5_000]


def test_every_flipped_byte_of_a_gzip_file_is_told_as_damage(tmp_path):
    whole = gzip.compress(b"".join(b'{"problem": "%d+1?", "answer": "%d"}\n' % (n, n + 1) for n in range(200)))
    expected = collect(tmp_path, local(tmp_path, whole))[0]
    for place in range(10, len(whole), 23):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        for file_format in ("jsonl", "json"):
            with pytest.raises(UserError, match=r"rows is a damaged gzip file .*again"):
                collect(tmp_path, local(tmp_path, bytes(damaged), file_format))
    members = gzip.compress(gzip.decompress(whole)[:500]) + gzip.compress(gzip.decompress(whole)[500:])
    assert collect(tmp_path, local(tmp_path, members))[0].equals(expected)


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_a_gzip_bomb_is_read_only_as_far_as_its_rows_are_wanted(tmp_path, file_format):
    first = {"jsonl": GOOD, "csv": b"problem,answer\n1+1?,2\n"}[file_format]
    content = gzip.compress(first + bytes(400 << 20), 1)
    before = psutil.Process().memory_info().rss
    problems, _, _ = collect(tmp_path, local(tmp_path, content, file_format, max_rows=1))
    assert problems["answer"].tolist() == ["2"]
    assert psutil.Process().memory_info().rss - before < 200 << 20


def test_a_line_that_is_too_long_is_a_drop_in_json_and_an_error_in_csv(tmp_path, monkeypatch):
    monkeypatch.setattr("stages.collect.run.MAX_LINE_BYTES", 1 << 20)
    long = b'{"problem": "' + b"x" * (2 << 20) + b'", "answer": "1"}\n'
    problems, dropped, _ = collect(tmp_path, local(tmp_path, GOOD + long + GOOD))
    assert len(problems) == 2 and dropped["detail"].tolist() == ["its line has more than 1 MiB"]
    with pytest.raises(UserError, match="line 2 has more than 1 MiB: split the file"):
        collect(tmp_path, local(tmp_path, b"problem,answer\n" + b"x" * (2 << 20) + b",1\n", "csv"))


def test_csv_fields_may_be_long_and_columns_have_different_names(tmp_path):
    long = "x" * 200_000
    content = f'problem,answer\n"{long}\r\n",1\n2+2?,4'.encode()
    assert collect(tmp_path, local(tmp_path, content, "csv"))[0]["problem"].tolist() == [long, "2+2?"]
    with pytest.raises(UserError, match="several columns 'answer': rename all but one"):
        collect(tmp_path, local(tmp_path, b"problem,answer,answer\n1+1?,2,3\n", "csv"))
    with pytest.raises(UserError, match=r"not CSV in UTF-8 \(unexpected end of data\)"):
        collect(tmp_path, local(tmp_path, b'problem,answer\n"1+1?,2\n', "csv"))


def test_parquet_decimals_and_bytes_are_numbers_and_texts(tmp_path):
    decimals = pyarrow.array([Decimal("2.00"), Decimal("-0.50"), Decimal("1200.00")], pyarrow.decimal128(9, 2))
    table = pyarrow.table({"problem": pyarrow.array([b"a", b"\xc3\xa9", b"\xff"]), "answer": decimals})
    pyarrow.parquet.write_table(table, tmp_path / "table")
    problems, dropped, _ = collect(tmp_path, local(tmp_path, (tmp_path / "table").read_bytes(), "parquet"))
    assert problems[["problem", "answer"]].values.tolist() == [["a", "2"], ["\u00e9", "-0.5"]]
    assert dropped["reason"].tolist() == ["unusable_problem"]


def test_parquet_floats_are_the_shortest_decimals_of_their_own_type(tmp_path):
    values = [1234.56, 0.1, 1e22, 3e-7, 27.0, None]
    columns = {
        "problem": [str(n) for n in range(6)],
        "answer": pyarrow.array(values, pyarrow.float32()),
        "meta": pyarrow.array(
            [{"x": [value]} for value in values], pyarrow.struct([("x", pyarrow.list_(pyarrow.float32()))])
        ),
        "wide": pyarrow.array(values, pyarrow.float64()),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "table")
    told = ["1234.56", "0.1", "1" + 22 * "0", "0.0000003", "27"]
    for field in ("answer", "meta.x.0", "wide"):
        fields = PLAIN | {"answer": field}
        problems, dropped, _ = collect(
            tmp_path, local(tmp_path, (tmp_path / "table").read_bytes(), "parquet", fields=fields)
        )
        assert problems["answer"].tolist() == told, field
        assert dropped["reason"].tolist() == ["missing_answer"]


def test_characters_that_nobody_sees_are_left_out(tmp_path):
    rows = [{"problem": "1\x00+1\x07?\n\tNow", "answer": "2\x00"}, {"problem": "\x00", "answer": "1"}]
    problems, dropped, _ = collect(tmp_path, local(tmp_path, lines(rows)))
    assert problems[["problem", "answer"]].values.tolist() == [["1+1?\n\tNow", "2"]]
    assert dropped["reason"].tolist() == ["missing_problem"]


@pytest.mark.parametrize(
    ("field", "row", "text"),
    [
        ("meta.parts.1", {"meta": {"parts": ["a", "b"]}}, "b"),
        ("a.b", {"a.b": "dotted", "a": {"b": "nested"}}, "dotted"),
        ("n", {"n": 27.0}, "27"),
        ("n", {"n": 0.5}, "0.5"),
        ("n", {"n": True}, "True"),
        ({"kind": "joined", "fields": ["x", "y"], "separator": " "}, {"x": "A", "y": "B"}, "A B"),
        ({"kind": "boxed", "field": "x"}, {"x": "so $\\boxed{\\frac{1}{2}}$."}, "\\frac{1}{2}"),
        (
            {"kind": "listed", "field": "x", "open": "[", "separator": ", ", "close": "]"},
            {"x": [[1, 2], [3, 4.5]]},
            "[[1, 2], [3, 4.5]]",
        ),
        ({"kind": "listed", "field": "x", "open": "[", "separator": ", ", "close": "]"}, {"x": ["7"]}, "7"),
        ({"kind": "choices", "field": "x", "choices": "c"}, {"x": "Which?", "c": ["u", 2]}, "Which?\nA. u\nB. 2"),
        ({"kind": "choice_letter", "field": "x"}, {"x": 3}, "D"),
        (
            {"kind": "matches", "field": "x", "pattern": "<<([^<>]*)>>", "separator": "\n"},
            {"x": "half: 48/2=<<48/2=24>>24.\nboth: <<48+24=72>>72 #### 72"},
            "48/2=24\n48+24=72",
        ),
        ({"kind": "matches", "field": "x", "pattern": "[0-9]+", "separator": " "}, {"x": "a1b22"}, "1 22"),
    ],
)
def test_field_kinds(tmp_path, field, row, text):
    row = {**row, "q": "question"}
    for target in ("problem", "answer"):
        fields = {"problem": "q", "answer": "q", "solution": None, target: field}
        problems, _, _ = collect(tmp_path, local(tmp_path, lines([row]), fields=fields))
        assert problems[target].tolist() == [text]


def test_a_solution_without_matches_is_none_and_a_pattern_must_be_one(tmp_path):
    fields = {**PLAIN, "solution": {"kind": "matches", "field": "s", "pattern": "=(.*)", "separator": " "}}
    rows = [{"problem": "1", "answer": "1", "s": "one"}, {"problem": "2", "answer": "2", "s": "x=2"}]
    problems, _, _ = collect(tmp_path, local(tmp_path, lines(rows), fields=fields))
    assert problems["solution"].isna().tolist() == [True, False] and problems["solution"][1] == "2"
    fields["solution"]["pattern"] = "("
    with pytest.raises(UserError, match="not a regular expression"):
        collect(tmp_path, local(tmp_path, lines(rows), fields=fields))


def test_only_selects_rows(tmp_path):
    rows = [{"problem": "1", "answer": "1", "picture": None}, {"problem": "2", "answer": "2", "picture": "x.png"}]
    problems, dropped, _ = collect(tmp_path, local(tmp_path, lines(rows), only={"picture": [None]}))
    assert problems["problem"].tolist() == ["1"] and dropped["reason"].tolist() == ["not_selected"]


def test_local_file_must_be_the_one_of_the_recipe(tmp_path):
    origin = local(tmp_path, lines([{"problem": "p", "answer": "1"}]))
    with pytest.raises(UserError, match=r"has sha256 [0-9a-f]{64}, not 1{64}, which sources\.some\.from\.sha256"):
        collect(tmp_path, {**origin, "sha256": "1" * 64})
    with pytest.raises(UserError, match="does not exist"):
        collect(tmp_path, {**origin, "path": str(tmp_path / "elsewhere")})


ARITHMETIC = {
    "kind": "arithmetic",
    "rows": 40,
    "seed": 1,
    "weights": {"chain": 2, "word": 1, "comparison": 1},
    "operand_max": 9,
    "value_max": 20,
    "steps": [2, 3, 4],
}


DIGITS = {"kind": "digits", "rows": 40, "seed": 1, "sizes": {3: 1, 5: 2}, "coefficients": [2, 3], "is_held_out": True}
FEW_SUMS = {"operand_max": 1, "value_max": 2, "steps": [1], "weights": {"chain": 1}}


@pytest.mark.parametrize(
    ("origin", "end", "too_many"), [(ARITHMETIC, "", FEW_SUMS), (DIGITS, " yes", {"rows": 2000, "sizes": {2: 1}})]
)
def test_generated_problems(tmp_path, origin, end, too_many):
    problems, _, metrics = collect(tmp_path, origin)
    assert metrics == {"rows/in": 40, "rows/kept": 40}
    row = problems.iloc[0]
    assert row["solution"].endswith(f"{end}\nThe answer is \\boxed{{{row['answer']}}}.")
    assert origin is ARITHMETIC or all(read_problem(text).is_held_out for text in problems["problem"])
    with pytest.raises(UserError, match=r"only about \d+ different problems exist, but \d+ were .*; lower `rows`"):
        collect(tmp_path, origin | too_many)


def test_generated_by_reasoning_gym(tmp_path):
    origin = {"kind": "reasoning_gym", "task": "gcd", "rows": 5, "seed": 2, "config": {"max_value": 50}}
    problems, _, _ = collect(tmp_path, origin)
    assert len(problems) == 5 and problems["answer"].str.isdigit().all()
    again, _, _ = collect(tmp_path, origin)
    assert again.equals(problems)
    with pytest.raises(UserError, match=r"has no task 'gcdd'.*try: gcd"):
        collect(tmp_path, {**origin, "task": "gcdd"})
    with pytest.raises(UserError, match=r"refuses sources\.some\.from\.config"):
        collect(tmp_path, {**origin, "config": {"no_such_setting": 1}})


HUB = CONTENT | {"kind": "hub", "repository": "openai/gsm8k", "revision": "a" * 40, "file": "main/test.parquet"}


def test_unreachable_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UserError, match=r"main/test\.parquet of openai/gsm8k at aaaaaaaaaaaa cannot be fetched"):
        collect(tmp_path, HUB)


def test_params_are_strict(tmp_path):
    source = {"role": "train", "licence": "MIT", "from": {**ARITHMETIC, "rows": 0, "colour": "red"}}
    with pytest.raises(UserError) as error:
        validate_section(source, "sources.some", SourceParams, Path("params.yaml"))
    assert "rows" in str(error.value) and "colour: unknown key" in str(error.value)
    fields = {**PLAIN, "answer": {"kind": "magic"}}
    with pytest.raises(UserError, match=r"fields\.map\.answer: give the name of a field"):
        collect(tmp_path, local(tmp_path, b"", fields=fields))
    with pytest.raises(UserError, match="revision"):
        collect(tmp_path, HUB | {"revision": "main"})


def test_a_draw_is_a_fixed_sample_that_keeps_the_numbers_of_the_rows(tmp_path):
    rows = [{"question": f"{number}?", "options": ["no", "yes"], "answer": "B"} for number in range(200)]
    fields = {"problem": {"kind": "choices", "field": "question", "choices": "options"}, "answer": "answer"}

    def drawn(seed, count=50):
        params = local(tmp_path, lines(rows), fields=fields | {"solution": None}, draw={"rows": count, "seed": seed})
        problems, dropped, metrics = collect(tmp_path, params)
        assert metrics["rows/in"] == len(problems) + len(dropped) == 200 and set(dropped["reason"]) <= {"not_drawn"}
        return dict(zip(problems["problem_id"], problems["problem"], strict=True))

    first = drawn(1)
    assert len(first) == 50 and first == drawn(1) != drawn(2)
    assert all(text == f"{row_id.split('/')[1]}?\nA. no\nB. yes" for row_id, text in first.items())
    numbers = sorted(int(row_id.split("/")[1]) for row_id in first)
    assert numbers[0] < 20 and numbers[-1] >= 180  # from the whole file
    assert len(drawn(1, 200)) == len(drawn(1, 500)) == 200


WHOLE = {"problem": "problem", "answer": "answer", "solution": "solution"}
LISTED = {"kind": "listed", "open": "", "separator": ", ", "close": ""}
MIRRORED = {
    "gsm8k/train": (GSM8K, 7473, "72"),
    "gsm8k/test": (GSM8K, 1319, "18"),
    "math/math500": (WHOLE, 500, "\\left( 3, \\frac{\\pi}{2} \\right)"),
    "math/train": (PLAIN, 7470, "0"),
    "math/test": ({**WHOLE, "answer": {"kind": "boxed", "field": "solution"}}, 5000, "2"),
    "aime/aime_1983_2023": (WHOLE, 975, "60"),
    "aime/aime24": (WHOLE, 30, "204"),
    "aime/aime25": ({"problem": "problem", "answer": "expected_answer", "solution": "reference_solution"}, 30, "70"),
    "amc/amc23": (PLAIN, 40, "27"),
    "theoremqa/test": (
        {"problem": "Question", "answer": {**LISTED, "field": "Answer", "open": "[", "close": "]"}, "solution": None},
        747,
        "11760",
    ),
    "mmlu_stem/test": (
        {
            "problem": {"kind": "choices", "field": "question", "choices": "choices"},
            "answer": {"kind": "choice_letter", "field": "answer"},
            "solution": None,
        },
        3018,
        "C",
    ),
    "svamp/test": (
        {
            "problem": {"kind": "joined", "fields": ["Body", "Question"], "separator": " "},
            "answer": "Answer",
            "solution": None,
        },
        1000,
        "145",
    ),
    "olympiadbench/test": (
        {
            "problem": "question",
            "answer": {**LISTED, "field": "final_answer"},
            "solution": {**LISTED, "field": "solution", "separator": "\n\n"},
        },
        675,
        "2",
    ),
}


@pytest.mark.skipif(not MIRROR.is_dir(), reason=f"needs the files of {MIRROR}")
@pytest.mark.parametrize("name", MIRRORED)
def test_each_file_of_the_mirror_has_a_field_map(name, monkeypatch):
    known = {entry["name"]: entry for entry in json.loads((MIRROR / "sources.json").read_text())}
    assert set(known) == set(MIRRORED)
    fields, rows, first_answer = MIRRORED[name]
    origin = CONTENT | {"kind": "url", **{key: known[name][key] for key in ("url", "sha256", "format")}}
    origin |= {"fields": fields, "only": {"Picture": [None]} if name == "theoremqa/test" else {}}
    source = SourceParams.model_validate({"role": "benchmark", "licence": "MIT", "from": origin})
    monkeypatch.setenv(MIRROR_VARIABLE, str(MIRROR))
    problems, funnel = collect_source("some", source)
    assert len(problems) == rows and problems[0]["answer"] == first_answer
    assert set(funnel.dropped_frame()["reason"]) <= {"missing_answer", "not_selected"}
    solutions = [problem["solution"] for problem in problems if problem["solution"]]
    if fields["solution"]:
        assert len(solutions) > 0.9 * rows
    if name.startswith("gsm8k"):
        assert not any("<<" in solution or "####" in solution for solution in solutions)
