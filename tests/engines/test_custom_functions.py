"""A user's function: every way to write it, and every way in which it fails."""

import json
from statistics import pstdev

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands.trying import describe
from stages.engines.custom_functions import CustomFunction, FunctionValue
from stages.engines.verifier.params import VerifierParams
from stages.foundations.errors import UserError
from stages.foundations.params import CustomFunctionParams, custom_file

ROWS = [
    {"problem": "1+1", "answer": "2", "response": "It is 2.", "verdict": "correct", "response_tokens": 4},
    {"problem": "1+2", "answer": "3", "response": "No idea", "verdict": "unparsed", "response_tokens": 2},
]


LIMITS = VerifierParams(timeout_seconds=0.5, memory_mib=256, workers=1, abort_undecided_fraction=0.1)


def ask(tmp_path, source, rows=ROWS, decide=None, **params):
    file = tmp_path / "mine.py"
    file.write_text(source)
    params = CustomFunctionParams(**{"kind": "function", "file": "custom/mine.py", "name": "score"} | params)
    with CustomFunction(params, LIMITS, file) as function:
        return function.ask(rows) if decide is None else function.decide(rows, **decide)


def faults(tmp_path, source, **params):
    return [value.fault for value in ask(tmp_path, source, **params)]


@pytest.mark.parametrize(
    ("source", "arguments", "values"),
    [
        ("def score(response): return len(response)", {}, [8, 7]),
        ("def score(response, answer): return answer in response", {}, [1, 0]),
        ("def score(response_tokens, *, limit, verdict): return response_tokens / limit", {"limit": 8}, [0.5, 0.25]),
        ("def score(response, scale=3, **others): return scale * len(others)", {}, [12, 12]),
        ("def score(rows): return [len(row['response']) for row in rows]", {}, [8, 7]),
        ("def score(rows, plus): return [plus + number for number in range(len(rows))]", {"plus": 5}, [5, 6]),
        ("import math\nfrom decimal import Decimal\nscore = lambda problem: Decimal(math.isqrt(9))", {}, [3, 3]),
    ],
)
def test_it_takes_what_it_names(tmp_path, source, arguments, values):
    assert ask(tmp_path, source, arguments=arguments) == [FunctionValue(value) for value in values]


def test_named_parts_are_kept_and_added(tmp_path):
    values = ask(tmp_path, "def score(response_tokens): return {'right': True, 'length': -response_tokens / 4}")
    assert values == [FunctionValue(0.0, {"right": 1, "length": -1}), FunctionValue(0.5, {"right": 1, "length": -0.5})]


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        ("True", FunctionValue(1.0)),
        ("0.0", FunctionValue(0.0)),
        ("0.5", FunctionValue(fault="it returned 0.5, which is neither True nor False")),
        ("{'right': 1}", FunctionValue(fault="it returned named parts, which is neither True nor False")),
        ("None", FunctionValue(fault="it returned None, which is no finite number")),
        ("''", FunctionValue(fault="it returned a str, which is no finite number")),
        ("'too\\nlong' + 500 * '.'", FunctionValue(text="too long" + 192 * ".")),
    ],
)
def test_a_decision_is_true_or_false_or_where_it_may_be_a_text(tmp_path, returned, value):
    source = f"def score(response):\n    return {returned} if response.startswith('It') else True"
    assert ask(tmp_path, source, decide={"allows_text": True}) == [value, FunctionValue(1.0)]
    if value.text:
        [fault, _] = ask(tmp_path, source, decide={})
        assert fault.fault == "it returned a str, which is no finite number"


def test_half_a_character_in_what_a_function_says_can_be_stored(tmp_path):
    [fault, _] = faults(tmp_path, "def score(response): raise ValueError('\\ud800')")
    assert fault == "ValueError: ?"


def test_many_rows_of_a_function_that_takes_them_together(tmp_path):
    source = "def score(rows): return [len(rows)] * len(rows)"
    values = ask(tmp_path, source, [{"response": "a"}] * 600)
    assert [value.value for value in values] == [256] * 512 + [88] * 88, "calls of at most 256"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "it returned None, which is no finite number"),
        ("return float('nan')", "it returned nan, which is no finite number"),
        ("return '1'", "it returned a str, which is no finite number"),
        ("return {'a': 1, 'b': None}", "it returned None as 'b', which is no finite number"),
        ("return {}", "it returned no part at all"),
        ("return {'pass@1': 1}", "it returned a part named 'pass@1': use letters, digits, _, -, . and spaces"),
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("while True: pass", "it took more than 0.5 seconds"),
        ("return len(bytearray(1 << 30))", "it took more than 256 MiB"),
        ("import os; os._exit(3)", "its process ended (exit code 3)"),
        ("import os; return os.fork()", "PermissionError: [Errno 1] Operation not permitted"),
        ("import socket; return socket.socket()", "PermissionError: [Errno 1] Operation not permitted"),
        ("open('/tmp/written-by-a-reward', 'w')", "PermissionError: [Errno 1] Operation not permitted"),
        ("return open('/etc/passwd').read()", "PermissionError: [Errno 13] Permission denied"),
    ],
)
def test_what_goes_wrong_in_one_row_is_a_fault_of_that_row(tmp_path, body, message):
    source = f"def score(response):\n    if response.startswith('It'):\n        {body}\n    return 2"
    first, second = ask(tmp_path, source)
    assert first.fault.startswith(message) and second == FunctionValue(2)


def test_a_function_that_prints_megabytes_is_heard_to_its_end(tmp_path):
    assert ask(tmp_path, "def score(response):\n    print('x' * 4_000_000)\n    return 1") == [FunctionValue(1)] * 2


def test_a_wrong_number_of_values_is_the_fault_of_all(tmp_path):
    assert faults(tmp_path, "def score(rows): return [1]") == ["it returned 1 values for 2 rows"] * 2
    assert faults(tmp_path, "def score(rows): return 1") == ["it returned a int for 2 rows"] * 2
    assert faults(tmp_path, "def score(rows): return [1, None]")[1].startswith("it returned None")


@pytest.mark.parametrize(
    ("source", "params", "message"),
    [
        ("def score(response: return 1", {}, "mine.py cannot be loaded: SyntaxError"),
        ("import no_such_package", {}, "mine.py cannot be loaded: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", {}, "mine.py cannot be loaded: SystemExit: 3"),
        ("def points(response): return 1", {}, "mine.py has no score: its functions are points"),
        ("score = 3", {}, r"score in .*mine\.py is a int: it has to be a function"),
        ("def score(respones): return 1", {}, "wants respones, which no row has: a row has problem, answer, response"),
        ("def score(response): return 1", {"arguments": {"limit": 3}}, "takes no limit: correct `arguments`"),
    ],
)
def test_a_mistake_in_the_file_stops_at_once(tmp_path, source, params, message):
    with pytest.raises(UserError, match=message):
        ask(tmp_path, source, **params)


def test_a_trusted_function_may_write(tmp_path):
    source = f"def score(response): return open({str(tmp_path / 'seen')!r}, 'w').write(response)"
    assert [value.value for value in ask(tmp_path, source, sandbox="off")] == [8, 7]
    assert (tmp_path / "seen").read_text() == "No idea"


def test_a_file_outside_of_the_folder_or_not_there_is_refused(tmp_path, monkeypatch):
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/mine.py").touch()
    (tmp_path / "secret.py").touch()
    (tmp_path / "custom/link.py").symlink_to(tmp_path / "secret.py")
    assert custom_file("custom/mine.py", tmp_path) == tmp_path / "custom/mine.py"
    for name, message in (
        ("custom/../secret.py", "is not in custom/"),
        ("custom/link.py", "is not in custom/"),
        ("custom/no.py", "there are .*mine.py"),
    ):
        with pytest.raises(UserError, match=message):
            custom_file(name, tmp_path)


def test_retrace_reward_shows_what_a_file_pays_for(tmp_path):
    verdicts = ["wrong", "correct"] * 10
    rows = [
        {"problem_id": f"p/{number}", "response": f"x\x1b[31m{'a' * number}", "verdict": verdict}
        for number, verdict in enumerate(verdicts)
    ]
    table = tmp_path / "rows.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    file = tmp_path / "mine.py"
    body = "{'length': len(response) - 6, 'right': by * (verdict == 'correct')}"
    file.write_text(f"def score(response, verdict, by): return {body}")
    out = tmp_path / "values.jsonl"
    done = CliRunner().invoke(app, ["reward", str(file), str(table), "--arguments", '{"by": 100}', "--out", str(out)])
    assert done.exit_code == 0, done.output
    words = [line.split() for line in done.output.splitlines()]
    values = [number + 100 * (number % 2) for number in range(20)]
    assert ["reward", "20", "59.5", f"{pstdev(values):.4g}", "0", "119"] in words
    assert ["part", "right", "20", "50", "50", "0", "100"] in words
    assert "\x1b" not in done.output and "most: 119  p/19  correct" in done.output
    written = json.loads(out.read_text().splitlines()[3])
    assert written == {"problem_id": "p/3", "reward": 103, "parts": {"length": 3, "right": 100}}
    file.write_text("def score(response): return 1 / (len(response) - 7)")
    done = CliRunner().invoke(app, ["reward", str(file), str(table), "--rows", "10"])
    assert done.exit_code == 0, "every second row, and the one that fails is not among them"
    done = CliRunner().invoke(app, ["reward", str(file), str(table)])
    assert done.exit_code == 1 and "failed 1 times: ZeroDivisionError" in done.output
    for arguments, message in (
        ([str(file), str(file)], "cannot be read"),
        ([str(tmp_path / "no.py"), str(table)], "no.py cannot be read"),
        ([str(file), str(table), "--arguments", "{"], "is no JSON"),
    ):
        done = CliRunner().invoke(app, ["reward", *arguments])
        assert done.exit_code == 2 and message in done.output


def test_retrace_reward_pays_what_the_recipe_says(tmp_path, monkeypatch):
    """Weights and arguments come from the reward in params.yaml that names the function; others have none."""
    reward = {"kind": "function", "file": "custom/mine.py", "name": "score", "arguments": {"by": 3}}
    others = {"right": {"weight": 5.0, "reward": {"kind": "by_verdict", "correct": 1.0, "wrong": 0.0, "unparsed": 0.0}}}
    both = others | {"mine": {"weight": 2.0, "reward": reward | {"weights": {"a": 0.5}}}}
    params = {"rl": {"reward": {"kind": "sum", "rewards": both}}, "verifier": LIMITS.model_dump()}
    (tmp_path / "params.yaml").write_text(json.dumps(params))
    (tmp_path / "custom").mkdir()
    source = "def score(response, by=1): return {'a': 10 * by, 'b': by}\nother = score"
    (tmp_path / "custom/mine.py").write_text(source)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"response": "x"}))
    monkeypatch.setattr("pipelines.commands.trying.PROJECT", tmp_path)

    def pays(*arguments):
        files = [str(tmp_path / name) for name in ("custom/mine.py", "rows.jsonl")]
        done = CliRunner().invoke(app, ["reward", *files, "--out", str(tmp_path / "out.jsonl"), *arguments])
        assert done.exit_code == 0, done.output
        return json.loads((tmp_path / "out.jsonl").read_text()), done.output

    value, said = pays()
    assert value["reward"] == 0.5 * 30 + 3 and value["parts"] == {"a": 30, "b": 3}
    assert "as in rl.reward of params.yaml: arguments {'by': 3}, weights {'a': 0.5}" in said
    assert pays("--arguments", '{"by": 1}')[0]["reward"] == 0.5 * 10 + 1
    assert pays("--name", "other")[0]["reward"] == 10 + 1
    (tmp_path / "params.yaml").write_text(json.dumps({"verifier": LIMITS.model_dump()}))
    assert pays()[0]["reward"] == 10 + 1


def test_the_ends_show_problem_and_answer_without_control_characters():
    rows = [{"problem_id": str(one), "problem": f"{one} + 1?", "answer": str(one + 1)} for one in range(7)]
    rows = [row | {"response": f"\x1b[2J\n{row['problem_id']}"} for row in rows]
    told = "\n".join(describe(rows, [FunctionValue(value=float(one)) for one in range(7)]))
    assert "least: 0  0  \n  problem   0 + 1?  (answer 1)\n  response   [2J 0" in told
    assert "most: 6  6" in told and "\x1b" not in told
