import gzip
import json

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands.grading import compare_verdicts
from tests.fakes.tiny_policy import write_tiny_policy

ROWS = [
    {"gold": "1/2", "prediction": r"so \boxed{0.5}", "id": "half"},
    {"gold": 7, "prediction": "The answer is 8"},
    {"gold": "7", "prediction": r"\boxed{7", "truncated": True},
    {"gold": "7", "prediction": "The answer is 7", "truncated": True},
    {"gold": "0.1", "prediction": "0.11", "tolerance": 0.01},
    {"gold": "x", "prediction": "\ud800"},
    {"gold": "7"},
    {"gold": "1", "prediction": "1", "tolerance": "much"},
]
VERDICTS = ["correct", "wrong", "unparsed", "unparsed", "correct", "unparsed", "unparsed", "unparsed", "unparsed"]


def run(*arguments, text=None):
    return CliRunner().invoke(app, list(map(str, arguments)), input=text)


@pytest.fixture
def rows_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\nno json\n")
    return path


def test_each_row_gets_one_line_in_order(rows_file):
    result = run("grade", rows_file, "--jobs", 1)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert [line["verdict"] for line in lines] == VERDICTS
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert lines[0] | {"id": "half", "extracted": "0.5", "path": "exact", "reason": "number"} == lines[0]
    assert [line["reason"] for line in lines[-3:]] == ["no_prediction", "tolerance_is_no_number", "not_json"]
    assert "graded 9 rows" in result.stderr
    assert run("grade", "-", text=rows_file.read_text()).stdout == result.stdout, "from standard input too"


def test_a_mistake_of_the_caller_is_one_message(tmp_path, rows_file):
    for result in (run("grade", tmp_path / "none.jsonl"), run("grade", rows_file, "--judge", tmp_path / "none")):
        assert result.exit_code == 2 and "none" in result.stderr


def graded(path, *lines):
    """Returns exit code, reasons by line and messages of grading a file with these lines."""
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    result = run("grade", path, "--jobs", 1)
    return (result.exit_code, [json.loads(line)["reason"] for line in result.stdout.splitlines()], result.stderr)


SOUND = '{"gold": "1", "prediction": "1"}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not_json"),
        ("[1]", "not_an_object"),
        ("[" * 100_000, "not_json"),
        (b"\xff\xfe{", "not_json"),
        ('{"gold": "1"}', "no_prediction"),
        ('{"gold": null, "prediction": "1"}', "no_gold"),
        ('{"gold": ["1"], "prediction": "1"}', "gold_is_no_text"),
        ('{"gold": "1", "prediction": {"a": 1}}', "prediction_is_no_text"),
        ('{"gold": true, "prediction": "1"}', "gold_is_no_text"),
        ('{"gold": NaN, "prediction": "1"}', "gold_is_no_number"),
        ('{"gold": "1", "prediction": -Infinity}', "prediction_is_no_number"),
        ('{"gold": "1", "prediction": "1", "truncated": "yes"}', "truncated_is_no_boolean"),
        ('{"gold": "1", "prediction": "1", "tolerance": -1}', "tolerance_is_no_number"),
        ('{"gold": "1", "prediction": "1", "decimals": 1}', "decimals_is_no_boolean"),
        ('{"gold": "1", "prediction": "1", "tolerance": NaN}', "tolerance_is_no_number"),
        ('{"gold": "1", "prediction": "1", "tolerance": 1e999999999}', "tolerance_is_no_number"),
        ('{"gold": "1", "prediction": "1", "tolerance": 1e-999999999}', "tolerance_is_no_number"),
        ('{"gold": "1", "prediction": "' + "9" * 17 * 2**20 + '"}', "line_too_long"),
    ],
)
def test_a_bad_row_is_counted_and_the_next_is_judged(tmp_path, line, reason):
    code, reasons, told = graded(tmp_path / "rows.jsonl", line, SOUND)
    assert (code, reasons) == (0, [reason, "same_text"])
    assert f"1 rows could not be read ({reason})" in told


@pytest.mark.parametrize("lines", [[], [""], ["no json", "[2]"], [b"\x00\xff" * 99], ['{"gold": "1"}']])
def test_a_file_without_a_sound_row_is_refused(tmp_path, lines):
    code, _, told = graded(tmp_path / "rows.jsonl", *lines)
    assert code == 2 and "error: " in told


def test_numbers_keep_their_digits(tmp_path):
    """0.10 has two places as written; an integer may be longer than Python converts."""
    long = "7" * 5_000
    lines = [f'{{"gold": {long}, "prediction": "{long}", "id": 1.5}}', '{"gold": 0.10, "prediction": "0.10"}']
    assert graded(tmp_path / "rows.jsonl", *lines)[:2] == (0, ["same_text", "same_text"])


def test_gzipped_files_are_read_and_broken_ones_refused(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    whole = gzip.compress((SOUND + "\n").encode())
    for content, code in ((whole, 0), (whole[:-9], 2), (b"no gzip", 2)):
        path.write_bytes(content)
        result = run("grade", path)
        assert result.exit_code == code
        assert ("error: " in result.stderr) == (code == 2)


JUDGE_PARAMS = """
seed: 0
prompt: {kind: plain, template: "{problem}"}
sampler: {kind: torch, device: cpu, dtype: float32, threads: 1, max_sequences: 4}
"""


def test_a_policy_judges_in_the_place_of_the_rules(tmp_path):
    """A policy with random weights writes no readable judgement, which counts as undecided."""
    (tmp_path / "params.yaml").write_text(JUDGE_PARAMS)
    (tmp_path / "rows.jsonl").write_text(SOUND)
    policy = write_tiny_policy(tmp_path / "policy")
    options = ["--judge", policy, "--judge-tokens", 3, "--params", tmp_path / "params.yaml"]
    result = run("grade", tmp_path / "rows.jsonl", *options)
    line = json.loads(result.stdout)
    assert [line[name] for name in ("verdict", "reason", "path")] == ["unparsed", "no_judgement", "judge"]


def verdicts(*said):
    return {n: {"line": n, "verdict": verdict} for n, verdict in enumerate(said)}


def test_kappa_by_hand():
    """6 rows: both correct 2, both not 2, one each way. Observed 4/6, expected 1/2: kappa 1/3."""
    first = verdicts("correct", "correct", "correct", "wrong", "wrong", "unparsed")
    second = verdicts("correct", "correct", "wrong", "correct", "unparsed", "unparsed")
    found = compare_verdicts(first, second)
    assert (found.observed, found.kappa) == (pytest.approx(4 / 6), pytest.approx(1 / 3))
    assert found.table[("wrong", "unparsed")] == 1
    assert [row["row"] for row in found.differing] == [2, 3]
    assert compare_verdicts(verdicts("correct"), verdicts("correct")).kappa is None, "nothing varies"


def test_agreement_reads_what_grade_writes(tmp_path, rows_file):
    graded = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    lines = run("grade", rows_file).stdout
    graded[0].write_text(lines)
    graded[1].write_text(lines.replace('"wrong"', '"correct"'))
    report = run("agreement", *graded)
    assert report.exit_code == 0
    assert "1 rows differ" in report.stdout
    assert json.loads(run("agreement", *graded, "--json").stdout)["table"]["wrong/correct"] == 1
    graded[1].write_text(lines.splitlines()[0])
    assert run("agreement", *graded).exit_code == 2
    assert run("agreement", graded[0], rows_file).exit_code == 2


def judged(path, pairs):
    """Returns the verdict on each pair of gold answer and prediction."""
    path.write_text("\n".join(json.dumps({"gold": gold, "prediction": text}) for gold, text in pairs))
    result = run("grade", path, "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_answers_that_hang_a_verifier_cost_no_other_row_its_verdict(tmp_path):
    """Towers of powers and debris that hang math-verify, then a burst of work for it, and a plain answer last."""
    tower = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"
    power = r" Final Answer: The last three digits of \(2003^{2002^{2001}}\) are: \[Answer: 009\]"
    debris = "{@N 1276915 4951077 ник 国 {1,1-3-10);5个_GENERAL2全校。 _HEADERS1}"
    burst = [(rf"\int_0^{{{n}}} x^2 dx", rf"\boxed{{\frac{{{n**3}}}{{3}}}}") for n in range(4, 12)]
    hang = [("5", tower), ("009", power), ("92.5857658508735", debris), ("1/3", r"\boxed{\int_0^1 x^2 dx}")]
    rows = judged(tmp_path / "rows.jsonl", [*hang, *burst * 50, ("2", r"\boxed{2}")])
    assert [row["verdict"] for row in rows[:4]] == ["unparsed", "correct", "unparsed", "wrong"]
    assert rows[3]["reason"] == "not_worked_out" and rows[4]["path"] == "math_verify"
    assert [row["verdict"] for row in rows[4:]] == ["correct"] * 401, "none stood too long in a queue"
