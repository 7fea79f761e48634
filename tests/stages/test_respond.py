"""Every response is kept, and an interrupted run continues after its last piece."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from stages.__main__ import main
from stages.engines.samplers.protocol import Episode, Sample, StopReason
from stages.foundations.machine import state_folder
from stages.foundations.params import read_yaml
from stages.foundations.tables import BENCHMARK, RESPONSE, read_table, write_table
from stages.respond import run
from tests.engines.test_pieces import cut, flip, lose
from tests.fakes.taught_policy import stage_flags, write_params
from tests.fakes.tiny_policy import byte_tokenizer


def flags(taught, out, params="params.yaml", name="sft"):
    inputs = {"validation": taught / "problems.parquet", "benchmarks": taught / "benchmarks.parquet"}
    outputs = {"responses": out / "responses.parquet", "metrics": out / "responses.json"}
    return stage_flags(f"respond@{name}", params=taught / params, policy=taught / "sft", **inputs, **outputs)


def test_each_problem_has_one_greedy_and_all_sampled_responses(taught, tmp_path):
    main(flags(taught, tmp_path))
    frame = read_table(tmp_path / "responses.parquet", RESPONSE)
    assert frame.groupby(["problem_id", "mode"]).size().unique().tolist() in ([1, 4], [4, 1])
    assert frame["problem_id"].nunique() == 6
    metrics = json.loads((tmp_path / "responses.json").read_text())
    assert metrics["rows/kept"] == 30
    assert metrics["tokens/sampled"] == frame["response_tokens"].sum()


def test_thoughts_are_asked_to_end_here_too(taught, tmp_path):
    forced = {"kind": "phrase", "thinking_tokens": [8, 8], "mark": "}", "text": ";"}
    params = write_params(tmp_path / "params.yaml", {"prompt.forced_end": forced})
    main(flags(taught, tmp_path, params))
    frame = read_table(tmp_path / "responses.parquet", RESPONSE)
    is_forced = frame["turns"] == 2
    assert is_forced.mean() > 0.5
    for text, judged, span in frame[is_forced][["response", "final_response", "observed_characters"]].to_numpy():
        assert text[span[0] : span[1]] == ";" and text[span[1] :] == judged
    assert (frame[~is_forced]["response"] == frame[~is_forced]["final_response"]).all()
    assert json.loads((tmp_path / "responses.json").read_text())["tokens/observed"] > 0


@pytest.mark.parametrize("damage", [None, lose, flip, cut])
def test_a_run_that_is_cut_off_goes_on_and_gives_the_same_bytes(damage, taught, tmp_path, monkeypatch):
    main(flags(taught, tmp_path / "straight"))
    real, calls = run._respond_to, []

    def breaks_at_the_second_piece(piece, *rest):
        calls.append(len(piece))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(piece, *rest)

    monkeypatch.setattr(run, "_respond_to", breaks_at_the_second_piece)
    with pytest.raises(KeyboardInterrupt):
        main(flags(taught, tmp_path / "cut"))
    if damage:
        [piece] = state_folder().glob("scratch/respond-*/responses-000000.parquet")
        damage(piece)
    main(flags(taught, tmp_path / "cut"))
    assert calls == ([4, 2, 4, 2] if damage else [4, 2, 2])
    straight, cut = (tmp_path / name / "responses.parquet" for name in ("straight", "cut"))
    assert straight.read_bytes() == cut.read_bytes()


def test_a_prompt_that_does_not_fit_is_unanswered_and_counted(taught, tmp_path, capfd):
    """The policy has 512 positions. The other problems get the responses that they got without it."""
    benchmarks = read_table(taught / "benchmarks.parquet", BENCHMARK).to_dict("records")
    benchmarks[2] |= {"problem": benchmarks[2]["problem"] + " The weather is fine." * 40}
    write_table(benchmarks, tmp_path / "benchmarks.parquet", BENCHMARK)
    longer = [
        flag.replace(str(taught / "benchmarks.parquet"), str(tmp_path / "benchmarks.parquet"))
        for flag in flags(taught, tmp_path / "longer")
    ]
    main(longer)
    assert "WARNING: 1 benchmark problems count as wrong for" in capfd.readouterr().err
    main(flags(taught, tmp_path / "plain"))
    assert "WARNING" not in capfd.readouterr().err
    rows, plain = (read_table(tmp_path / name / "responses.parquet", RESPONSE) for name in ("longer", "plain"))
    name = benchmarks[2]["problem_id"]
    long = rows[rows["problem_id"] == name]
    assert len(long) == 5 and (long["response"] == "").all() and long["is_truncated"].all()
    assert rows[rows["problem_id"] != name].equals(plain[plain["problem_id"] != name])
    assert json.loads((tmp_path / "longer/responses.json").read_text())["prompts/too_long"] == 1
    assert "prompts/too_long" not in json.loads((tmp_path / "plain/responses.json").read_text())


def test_the_baseline_answers_the_prompt_with_which_it_solves_most_validation_problems(taught, tmp_path):
    """The choice is between the policy's training prompt and a prompt with which it was not trained."""
    trained = read_yaml(taught / "params.yaml")["prompt"]
    strange = {"kind": "plain", "template": "{problem}" + " and again" * 5}
    choice = {"policy": "sft", "max_problems": 5}
    choice["candidates"] = [{"prompt": one, "max_response_tokens": 12} for one in (strange, trained)]
    write_params(taught / "choice.yaml", {"prompt": strange, "respond.baseline_prompts": choice})
    write_params(taught / "strange.yaml", {"prompt": strange})

    def responses(params, name):
        out = tmp_path / f"{params}-{name}"
        main(flags(taught, out, params, name))
        frame = read_table(out / "responses.parquet", RESPONSE)
        return frame.to_dict("records"), json.loads((out / "responses.json").read_text())

    chosen, metrics = responses("choice.yaml", "sft")
    assert metrics["prompt/chosen"] == 1
    low, high = (metrics[f"prompt/{number}/validation_accuracy"] for number in (0, 1))
    assert 0 <= low < high <= 1
    assert chosen == responses("params.yaml", "sft")[0], "as with the section prompt that was chosen"
    others, metrics = responses("choice.yaml", "rl_1")
    assert "prompt/chosen" not in metrics and others == responses("strange.yaml", "rl_1")[0] != chosen


def test_the_text_of_an_episode_is_cut_where_its_tokens_are():
    tokenizer, parts = byte_tokenizer(), ["!é+1", ":é2;", "!3", ":error;", "=é"]
    ids, spans = [], []
    for place, part in enumerate(parts):
        # A turn ends with a token that the text lacks.
        own = tokenizer.encode(part) + [tokenizer.eos_token_id] * (place % 2 == 0)
        spans += [(len(ids), len(ids) + len(own))] if place % 2 else []
        ids += own
    sample = Sample(ids, [0.0] * len(ids), StopReason.END_OF_SEQUENCE, 0, Episode(tuple(spans), 3, parts[-1]))
    problem = dict.fromkeys(("problem_id", "benchmark", "problem", "answer"), "")
    row = run._row(problem, "greedy", 0, sample, tokenizer)
    cuts = [0, *row["observed_characters"], len(row["response"])]
    assert [row["response"][a:b] for a, b in pairwise(cuts)] == parts
    assert "observed_characters" not in run._row(problem, "greedy", 0, replace(sample, episode=None), tokenizer)
