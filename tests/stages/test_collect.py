"""collect: each real origin (a server on loopback, files, generators), and each way it can fail.

The last tests read the files of the shared mirror through the field maps of the recipes, and through others.
"""

import gzip
import hashlib
import json
from decimal import Decimal

import psutil
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from stages.algorithms.digit_tasks import read_problem
from stages.collect.run import collect_source
from stages.collect.stage import SourceParams
from stages.foundations.errors import UserError
from stages.foundations.machine import MIRROR_VARIABLE, PROJECT, mirror_folder
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


def lines(*rows):
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


def url_origin(server, sha256=None):
    (server.site / "rows.jsonl").write_bytes(lines(*ROWS))
    url = f"http://127.0.0.1:{server.server_port}/rows.jsonl"
    return CONTENT | {"kind": "url", "url": url, "sha256": sha256 or SHA256, "fields": GSM8K}


SHA256 = hashlib.sha256(lines(*ROWS)).hexdigest()


def make_mirror(tmp_path, monkeypatch, content):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / SHA256).write_bytes(content)
    monkeypatch.setenv(MIRROR_VARIABLE, str(tmp_path / "mirror"))


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_url_is_downloaded_once_and_never_replaced_by_other_bytes(tmp_path, server):
    problems, dropped, metrics = collect(tmp_path, url_origin(server))
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
    first, kept = (tmp_path / "out" / "problems").read_bytes(), files_under(tmp_path / "state")
    collect(tmp_path, url_origin(server))
    assert server.handler.requests == 1 and kept == [f"downloads/{SHA256}"]
    with pytest.raises(UserError, match=f"{SHA256}.*{'0' * 64}"):
        collect(tmp_path, url_origin(server, sha256="0" * 64))
    assert (tmp_path / "out" / "problems").read_bytes() == first and files_under(tmp_path / "state") == kept


def test_damaged_download_is_fetched_again(tmp_path, server):
    place = tmp_path / "state" / "downloads" / SHA256
    place.parent.mkdir(parents=True)
    place.write_text("half")
    assert len(collect(tmp_path, url_origin(server))[0]) == 2
    assert place.read_bytes() == lines(*ROWS)


def test_what_is_not_there_names_the_mirror(tmp_path, server, monkeypatch):
    origin = url_origin(server)
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
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:\d+/rows\.jsonl cannot be downloaded.*mirror folder"):
        collect(tmp_path, origin)
    assert files_under(tmp_path / "state") == []
    make_mirror(tmp_path, monkeypatch, lines(*ROWS))
    assert len(collect(tmp_path, origin)[0]) == 2


def test_mirror_with_damaged_copy(tmp_path, server, monkeypatch):
    make_mirror(tmp_path, monkeypatch, b"other")
    with pytest.raises(UserError, match="the copy is damaged"):
        collect(tmp_path, url_origin(server))
    assert server.handler.requests == 0
    monkeypatch.setenv(MIRROR_VARIABLE, "")
    assert len(collect(tmp_path, url_origin(server))[0]) == 2


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
    content = lines({"problem": "1+1?", "answer": 2}, ["a list"], {"problem": "no answer"}, {"answer": "1"})
    content += b'{"problem": "cut of\n' + b'{"problem": "\xff", "answer": "1"}\n'
    content += lines({"problem": "empty", "answer": " "}, {"problem": {"a": 1}, "answer": "1"})
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


def parquet(**columns):
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue().to_pybytes()


def test_formats_hold_the_same_rows(tmp_path):
    rows = [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(3)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    csv = "problem,answer\n" + "".join(f"{row['problem']},{row['answer']}\n" for row in rows)
    contents = {"json": json.dumps(rows).encode(), "parquet": parquet(**columns), "csv": csv.encode()}
    tables = [collect(tmp_path, local(tmp_path, lines(*rows)))[0]]
    tables.append(collect(tmp_path, local(tmp_path, gzip.compress(lines(*rows))))[0])
    tables += [collect(tmp_path, local(tmp_path, content, name))[0] for name, content in contents.items()]
    assert all(table.equals(tables[0]) for table in tables) and len(tables[0]) == 3
    assert len(collect(tmp_path, local(tmp_path, lines(*rows), max_rows=2))[0]) == 2


GOOD = b'{"problem": "1+1?", "answer": "2"}\n'
LONG = "x" * 200_000
DECIMALS = pyarrow.array([Decimal("2.00"), Decimal("-0.50"), Decimal("1200.00")], pyarrow.decimal128(9, 2))
ENDLESS = b'{"problem": "p", "answer": ' + b"9" * 5_000 + b"}"


@pytest.mark.parametrize(
    ("file_format", "content", "kept", "reason"),
    [
        ("csv", b'problem,answer\n"1, 2?",3\nshort\na,b,c\n', [["1, 2?", "3"]], "malformed_row"),
        ("csv", f'problem,answer\n"{LONG}\r\n",1\n2+2?,4'.encode(), [[LONG, "1"], ["2+2?", "4"]], None),
        ("jsonl", ENDLESS, [["p", "9" * 5_000]], None),
        ("json", b"[" + ENDLESS + b"]", [["p", "9" * 5_000]], None),
        # Characters that nobody sees.
        ("jsonl", lines({"problem": "1\0+1\7?\n\tNow", "answer": "2\0"}), [["1+1?\n\tNow", "2"]], None),
        ("jsonl", GOOD + lines({"problem": "\0", "answer": "1"}), [["1+1?", "2"]], "missing_problem"),
        # Bytes are texts, and decimals numbers.
        (
            "parquet",
            parquet(problem=pyarrow.array([b"a", b"\xc3\xa9", b"\xff"]), answer=DECIMALS),
            [["a", "2"], ["\u00e9", "-0.5"]],
            "unusable_problem",
        ),
    ],
)
def test_unusual_rows(tmp_path, file_format, content, kept, reason):
    problems, dropped, _ = collect(tmp_path, local(tmp_path, content, file_format))
    assert problems[["problem", "answer"]].values.tolist() == kept
    assert set(dropped["reason"]) == {reason} - {None}


@pytest.mark.parametrize(
    ("file_format", "content", "message"),
    [
        ("json", b"<html>", "correct `format`"),
        ("parquet", b"<html>", "correct `format`"),
        ("csv", b"problem,answer,answer\n1+1?,2,3\n", "several columns 'answer': rename all but one"),
        ("csv", b'problem,answer\n"1+1?,2\n', r"not CSV in UTF-8 \(unexpected end of data\)"),
        ("csv", b"problem,answer\n" + b"x" * (2 << 20) + b",1\n", "line 2 has more than 1 MiB: split the file"),
        ("jsonl", b"", "the file is empty"),
        (
            "jsonl",
            lines({"Question": "1+1?", "Answer": "2"}),
            r"no usable row out of 1 \(missing_problem 1; the first: no field `problem`; the row has: Question, An",
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path, monkeypatch, file_format, content, message):
    monkeypatch.setattr("stages.collect.file_rows.MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(UserError, match=message):
        collect(tmp_path, local(tmp_path, content, file_format))


@pytest.mark.parametrize(
    "line",
    [
        b'{"problem": ' + b"[" * 100_000,
        b'{"problem": "p", "answer": "1", "x": ' + b"[" * 600 + b"]" * 600 + b"}",
        b'{"problem": "p", "answer": "1", "x": ' + b'{"a": ' * 400 + b"1" + b"}" * 401,
        b'{"problem": "p", "answer": "1", "answer": "2"}',
        b'{"problem": "p", "answer": "1", "meta": [{"a": 1, "a": 2}]}',
        b'{"problem": "' + b"x" * (2 << 20) + b'", "answer": "1"}',
    ],
)
def test_a_hostile_line_costs_only_itself(tmp_path, line, monkeypatch):
    monkeypatch.setattr("stages.collect.file_rows.MAX_LINE_BYTES", 1 << 20)
    problems, dropped, _ = collect(tmp_path, local(tmp_path, GOOD + line + b"\n" + GOOD))
    assert problems["problem_id"].tolist() == ["some/0", "some/2"]
    assert dropped[["row_id", "reason"]].values.tolist() == [["some/1", "malformed_row"]]
    assert ("its line has more than 1 MiB" in dropped["detail"][0]) == (len(line) > 1 << 20)
    if len(line) < 1_000:
        problems, dropped, _ = collect(tmp_path, local(tmp_path, b"[" + GOOD + b"," + line + b"]", "json"))
        assert len(problems) == 1 and dropped["reason"].tolist() == ["malformed_row"]


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


@pytest.mark.parametrize(("file_format", "first"), [("jsonl", GOOD), ("csv", b"problem,answer\n1+1?,2\n")])
def test_a_gzip_bomb_is_read_only_as_far_as_its_rows_are_wanted(tmp_path, file_format, first):
    content = gzip.compress(first + bytes(400 << 20), 1)
    before = psutil.Process().memory_info().rss
    problems, _, _ = collect(tmp_path, local(tmp_path, content, file_format, max_rows=1))
    assert problems["answer"].tolist() == ["2"]
    assert psutil.Process().memory_info().rss - before < 200 << 20


def test_parquet_floats_are_the_shortest_decimals_of_their_own_type(tmp_path):
    values = [1234.56, 0.1, 1e22, 3e-7, 27.0, None]
    nested = pyarrow.struct([("x", pyarrow.list_(pyarrow.float32()))])
    content = parquet(
        problem=[str(n) for n in range(6)],
        answer=pyarrow.array(values, pyarrow.float32()),
        meta=pyarrow.array([{"x": [value]} for value in values], nested),
        wide=pyarrow.array(values, pyarrow.float64()),
    )
    for field in ("answer", "meta.x.0", "wide"):
        origin = local(tmp_path, content, "parquet", fields=PLAIN | {"answer": field})
        problems, dropped, _ = collect(tmp_path, origin)
        assert problems["answer"].tolist() == ["1234.56", "0.1", "1" + 22 * "0", "0.0000003", "27"], field
        assert dropped["reason"].tolist() == ["missing_answer"]


LISTED = {"kind": "listed", "field": "x", "open": "[", "separator": ", ", "close": "]"}
MATCHES = {"kind": "matches", "field": "x"}


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
        (LISTED, {"x": [[1, 2], [3, 4.5]]}, "[[1, 2], [3, 4.5]]"),
        (LISTED, {"x": ["7"]}, "7"),
        ({"kind": "choices", "field": "x", "choices": "c"}, {"x": "Which?", "c": ["u", 2]}, "Which?\nA. u\nB. 2"),
        ({"kind": "choice_letter", "field": "x"}, {"x": 3}, "D"),
        (
            MATCHES | {"pattern": "<<([^<>]*)>>", "separator": "\n"},
            {"x": "half: 48/2=<<48/2=24>>24.\nboth: <<48+24=72>>72 #### 72"},
            "48/2=24\n48+24=72",
        ),
        (MATCHES | {"pattern": "[0-9]+", "separator": " "}, {"x": "a1b22"}, "1 22"),
    ],
)
def test_field_kinds(tmp_path, field, row, text):
    row = {**row, "q": "question"}
    for target in ("problem", "answer"):
        fields = {"problem": "q", "answer": "q", "solution": None, target: field}
        problems, _, _ = collect(tmp_path, local(tmp_path, lines(row), fields=fields))
        assert problems[target].tolist() == [text]


def test_a_solution_without_matches_is_none(tmp_path):
    fields = PLAIN | {"solution": MATCHES | {"pattern": "=(.*)", "separator": " "}}
    rows = [{"problem": "1", "answer": "1", "x": "one"}, {"problem": "2", "answer": "2", "x": "x=2"}]
    problems, _, _ = collect(tmp_path, local(tmp_path, lines(*rows), fields=fields))
    assert problems["solution"].isna().tolist() == [True, False] and problems["solution"][1] == "2"


def test_only_selects_rows(tmp_path):
    rows = [{"problem": "1", "answer": "1", "picture": None}, {"problem": "2", "answer": "2", "picture": "x.png"}]
    problems, dropped, _ = collect(tmp_path, local(tmp_path, lines(*rows), only={"picture": [None]}))
    assert problems["problem"].tolist() == ["1"] and dropped["reason"].tolist() == ["not_selected"]


ARITHMETIC = {"kind": "arithmetic", "rows": 40, "seed": 1, "weights": {"chain": 2, "word": 1, "comparison": 1}}
ARITHMETIC |= {"operand_max": 9, "value_max": 20, "steps": [2, 3, 4]}
DIGITS = {"kind": "digits", "rows": 40, "seed": 1, "sizes": {3: 1, 5: 2}, "coefficients": [2, 3], "is_held_out": True}
FEW_SUMS = {"operand_max": 1, "value_max": 2, "steps": [1], "weights": {"chain": 1}}
GCD = {"kind": "reasoning_gym", "task": "gcd", "rows": 5, "seed": 2, "config": {"max_value": 50}}
HUB = CONTENT | {"kind": "hub", "repository": "openai/gsm8k", "revision": "a" * 40, "file": "main/test.parquet"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "1" * 64}, r"has sha256 [0-9a-f]{64}, not 1{64}, which sources\.some\.from\.sha256"),
        ({"path": "/nowhere"}, "does not exist"),
        ({"fields": PLAIN | {"solution": "sollution"}}, r"no row has a solution where sources\.some\.from\.f"),
        ({"fields": PLAIN | {"answer": MATCHES | {"pattern": "(", "separator": ""}}}, "not a regular expression"),
        ({"fields": PLAIN | {"answer": {"kind": "magic"}}}, r"fields\.map\.answer: give the name of a field"),
        (GCD | {"task": "gcdd"}, r"has no task 'gcdd'.*try: gcd"),
        (GCD | {"config": {"no_such_setting": 1}}, r"refuses sources\.some\.from\.config"),
        (HUB, r"main/test\.parquet of openai/gsm8k at aaaaaaaaaaaa cannot be fetched"),
        (HUB | {"revision": "main"}, "revision"),
        (ARITHMETIC | {"rows": 0, "colour": "red"}, r"(?s)rows.*colour: unknown key"),
    ],
)
def test_mistakes_of_a_recipe_are_told(tmp_path, monkeypatch, changes, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    origin = changes if "kind" in changes else local(tmp_path, GOOD) | changes
    with pytest.raises(UserError, match=message):
        collect(tmp_path, origin)


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
    problems, _, _ = collect(tmp_path, GCD)
    assert len(problems) == 5 and problems["answer"].str.isdigit().all()
    assert collect(tmp_path, GCD)[0].equals(problems)


def test_a_draw_is_a_fixed_sample_that_keeps_the_numbers_of_the_rows(tmp_path):
    rows = [{"question": f"{number}?", "options": ["no", "yes"], "answer": "B"} for number in range(200)]
    fields = {"problem": {"kind": "choices", "field": "question", "choices": "options"}, "answer": "answer"}

    def drawn(seed, count=50):
        params = local(tmp_path, lines(*rows), fields=fields | {"solution": None}, draw={"rows": count, "seed": seed})
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
CHOICES = {"kind": "choices", "field": "question", "choices": "choices"}
VALUES = {"kind": "listed", "field": "final_answer", "open": "", "separator": ", ", "close": ""}
MIRRORED = {
    "gsm8k/train": (7473, "72", None),
    "gsm8k/test": (1319, "18", None),
    "math/math500": (500, "\\left( 3, \\frac{\\pi}{2} \\right)", None),
    "math/train": (7470, "0", None),
    "math/test": (5000, "2", None),
    "aime/aime_1983_2023": (975, "60", WHOLE),
    "aime/aime24": (30, "204", None),
    "aime/aime25": (30, "70", None),
    "amc/amc23": (40, "27", PLAIN),
    "theoremqa/test": (747, "11760", None),
    "mmlu_stem/test": (3018, "C", PLAIN | {"problem": CHOICES, "answer": {"kind": "choice_letter", "field": "answer"}}),
    "svamp/test": (1000, "145", None),
    "olympiadbench/test": (
        675,
        "2",
        {"problem": "question", "answer": VALUES, "solution": VALUES | {"field": "solution", "separator": "\n\n"}},
    ),
}
"""Name -> usable rows, the first answer, and a field map where no recipe has one."""


@pytest.mark.skipif(not MIRROR.is_dir(), reason=f"needs the files of {MIRROR}")
@pytest.mark.parametrize("name", MIRRORED)
def test_each_file_of_the_mirror_has_a_field_map(name, monkeypatch):
    known = {entry["name"]: entry for entry in json.loads((MIRROR / "sources.json").read_text())}
    assert set(known) == set(MIRRORED)
    rows, first_answer, fields = MIRRORED[name]
    pinned = {key: known[name][key] for key in ("url", "sha256", "format")}
    if not fields:
        recipes = (yaml.safe_load(path.read_text()) for path in PROJECT.glob("pipelines/recipes/*.yaml"))
        origins = (one.get("from", {}) for recipe in recipes for one in recipe.get("sources", {}).values() if one)
        fields = next(origin["fields"] for origin in origins if pinned.items() <= origin.items())
    only = {"Picture": [None]} if name == "theoremqa/test" else {}
    origin = CONTENT | {"kind": "url", "fields": fields, "only": only} | pinned
    source = SourceParams.model_validate({"role": "benchmark", "licence": "MIT", "from": origin})
    monkeypatch.setenv(MIRROR_VARIABLE, str(MIRROR))
    problems, funnel = collect_source("some", source)
    assert len(problems) == rows and problems[0]["answer"] == first_answer
    assert set(funnel.dropped_frame()["reason"]) <= {"missing_answer", "not_selected"}
    solutions = [problem["solution"] for problem in problems if problem["solution"]]
    assert len(solutions) > (0.9 * rows if fields["solution"] else -1)
    if name.startswith("gsm8k"):
        assert not any("<<" in solution or "####" in solution for solution in solutions)
