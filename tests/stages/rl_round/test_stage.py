"""The whole round on a tiny policy: it learns, repeats bit for bit, resumes bit for bit, and reports errors."""

import importlib.util
import json
import math
import os
import re
import shutil
import sys
from functools import partial

import pytest

from stages.__main__ import main
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5
from stages.foundations.tables import PROBLEM, ROLLOUT, read_table, write_table
from stages.rl_round.loop import in_process, training_step
from stages.rl_round.loop.round_log import RolloutLog
from stages.rl_round.stage import ABOUT
from tests.fakes.engine_params import LORA, MUON
from tests.fakes.forks import killed_at_first_checkpoint
from tests.fakes.rounds import (
    ADAPTED,
    EVERYTHING,
    EXACT_UNDER_MISMATCH,
    JUDGED,
    NONE,
    PPO,
    REPLAYED,
    STALE,
    STOPPED,
    TRM,
    assert_replayed,
    assert_same,
    copied,
    curve,
    kill_after_three_steps,
    replay_params,
)
from tests.fakes.taught_policy import rl_flags, write_inputs, write_params
from tests.fakes.tiny_policy import byte_tokenizer


@pytest.fixture(scope="module")
def undisturbed(taught, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    main(rl_flags(taught, taught / "params.yaml", out))
    return out


def test_accuracy_rises(undisturbed):
    rows = curve(undisturbed)
    assert [row["step"] for row in rows] == list(range(1, 25))
    first, last = (sum(row["accuracy/mean"] for row in part) / 4 for part in (rows[:4], rows[-4:]))
    assert last > first + 0.1  # from about 0.35; one digit for every problem would give 0.5
    metrics = json.loads((undisturbed / "rl_1.json").read_text())
    assert metrics["accuracy/mean_last"] == pytest.approx(rows[-1]["accuracy/mean"])
    assert metrics["sync/logprob_gap_max"] < 1e-4 > metrics["logprob_gap/token_max"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(taught, undisturbed, tmp_path):
    main(rl_flags(taught, taught / "params.yaml", tmp_path / "again"))
    other = write_params(tmp_path / "other.yaml", {"seed": 1, "rl_rounds.rl_1.steps": 2})
    main(rl_flags(taught, other, tmp_path / "other"))
    assert_same(tmp_path / "again", undisturbed)
    frames = (read_table(out / "rl_1.parquet", ROLLOUT) for out in (tmp_path / "other", undisturbed))
    other_first, first = (frame[frame["step"] == 1]["response"].tolist() for frame in frames)
    assert other_first != first


@pytest.mark.slow
def test_a_killed_round_ends_with_the_weights_of_an_undisturbed_one(taught, tmp_path, capfd):
    """Its sampler has stale weights, which its checkpoints also have to hold."""
    params = write_params(tmp_path / "stale.yaml", {**STALE, "rl_rounds.rl_1.steps": 12})
    main(rl_flags(taught, params, tmp_path / "undisturbed"))
    flags = rl_flags(taught, params, tmp_path)
    command = [sys.executable, "-m", "stages", *flags]
    assert killed_at_first_checkpoint(command, dict(os.environ), tmp_path / "state")
    assert not (tmp_path / "rl_1").exists()
    main(flags)
    assert "resuming from step" in capfd.readouterr().err
    assert_same(tmp_path, tmp_path / "undisturbed")


def test_problems_whose_prompts_do_not_fit_are_left_out_before_the_first_step(taught, tmp_path, capfd):
    rows = read_table(taught / "problems.parquet", PROBLEM).to_dict("records")
    rows[1] |= {"problem": rows[1]["problem"] + " The weather is fine." * 40}
    write_table(rows, tmp_path / "problems.parquet", PROBLEM)
    flags = rl_flags(taught, write_params(tmp_path / "params.yaml", {"rl_rounds.rl_1.steps": 2}), tmp_path)
    main([flag.replace(str(taught / "problems.parquet"), str(tmp_path / "problems.parquet")) for flag in flags])
    assert rows[1]["problem_id"] not in set(read_table(tmp_path / "rl_1.parquet", ROLLOUT)["problem_id"])
    assert json.loads((tmp_path / "rl_1.json").read_text())["prompts/too_long"] == 1
    said = capfd.readouterr().err
    assert "rl_1: 1 problems are left out, as their prompts have more than 500 tokens" in said
    assert f"a response may have 12: {rows[1]['problem_id']}" in said
    assert "WARNING: rl_1 left out 1 problems: prompt and response do not fit the model" in said


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"kind": "dynamic", "max_draws": 1, "max_staleness": 2}, "none of the 20 groups had both correct"),
        ({"kind": "none"}, "every gradient was 0, because the responses of each group had equal rewards"),
    ],
)
def test_a_round_in_which_no_step_trained_says_so(taught, tmp_path, capsys, sampling, reason):
    """Responses have one token, so none has an answer."""
    changes = {
        "rl.dynamic_sampling": sampling,
        "rl.max_response_tokens": 1,
        "rl.overlong": NONE,
        "rl_rounds.rl_1.steps": 2,
    }
    main(rl_flags(taught, write_params(tmp_path / "params.yaml", changes), tmp_path))
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("WARNING")]
    assert told.startswith(f"WARNING: no step of rl_1 trained: {reason}")
    assert "(accuracy in its last step: 0.0%). Try easier problems" in told
    weights = [folder / "model.safetensors" for folder in (taught / "sft", tmp_path / "rl_1")]
    assert dvc_md5(weights[0]) == dvc_md5(weights[1]), "they stay as they were"
    assert all(math.isfinite(value) for row in curve(tmp_path) for value in row.values())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ["no step of rl_1 trained: none of the 60 groups .*100.0%.*Try harder problems"]),
        ({"groups/trained": 12}, ["no step of rl_1 trained: the verifier failed on every response"]),
        ({"progress/steps_without_update": 4}, []),
    ],
    ids=["all-right", "all-undecided", "one-step-trained"],
)
def test_a_round_of_problems_that_are_always_solved_asks_for_harder_ones(changes, told):
    metrics = {"progress/steps": 5, "progress/steps_without_update": 5, "groups/drawn": 60, "accuracy/mean_last": 1.0}
    warnings = ABOUT.warnings("rl_1", metrics | changes)
    assert len(warnings) == len(told) and all(map(re.match, told, warnings))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rl.problems_per_step": 100}, "fewer than rl.problems_per_step 100: use fewer slices"),
        ({"rl.policy_loss.clip_low": 0.5}, "DAPO only widens the upper side"),
        ({"rl.overlong.buffer_tokens": 12}, "must be less than max_response_tokens 12"),
        ({"rl_rounds.rl_1.problem_slice.index": 1}, "index 1 must be less than count 1"),
        ({"rl.adapter": LORA.model_dump(), "rl.optimizer": MUON.model_dump()}, "set optimizer.kind adamw, or leave"),
        ({"rl.study.mismatch": {"kind": "bfloat16_weights"}}, "max_logprob_gap 0.0001 would stop .* set it to null"),
        (
            # 4 problems x 8 responses x 12 tokens x 258 x 4 bytes.
            {**EXACT_UNDER_MISMATCH, "rl.study.rollout_distributions": {"kind": "whole", "max_gib": 0.0001}},
            r"may need 0.00037 GiB .*\(384 tokens over a vocabulary of 258\).*raise it",
        ),
    ],
)
def test_contradictory_settings_are_refused(taught, tmp_path, change, told):
    with pytest.raises(UserError, match=told):
        main(rl_flags(taught, write_params(tmp_path / "params.yaml", change), tmp_path))


CALLS = {
    "kind": "tools",
    "tools": {"sum": {"kind": "calculator", "busy_fraction": 0.0}},
    "calls": {"kind": "marked", "call": "<|call|>", "answer": "!"},
    "frame": {"kind": "text", "before": ":", "after": ";"},
    "max_turns": 2,
    "max_observation_tokens": 4,
    "workers": {"processes": 1, "memory_mib": 512, "timeout_seconds": 1.0},
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prompt.environment": CALLS}, r"prompt\.environment\.calls\.call is '<\|call\|>', which .* special token"),
        ({"verifier.thought": {"open": "(", "close": "<|call|>"}}, r"verifier\.thought\.close is '<\|call\|>'"),
    ],
)
def test_a_round_whose_marks_no_response_can_hold_does_not_start(tmp_path, change, told):
    folder = write_inputs(tmp_path)
    shutil.copytree(folder / "base", folder / "sft")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|call|>"], special_tokens=True)
    tokenizer.save_pretrained(folder / "sft")
    with pytest.raises(UserError, match=told):
        main(rl_flags(folder, write_params(tmp_path / "params.yaml", change), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_small_round_follows_its_settings(taught, tmp_path):
    """GRPO from named sources, with a learning rate of 0: weights and sampler stay equal bit for bit."""
    frame = read_table(taught / "problems.parquet", PROBLEM)
    frame["source"] = ["tens" if index % 2 else "ones" for index in range(len(frame))]
    problems = tmp_path / "problems.parquet"
    write_table(frame.to_dict("records"), problems, PROBLEM)
    changes = {
        "rl.dynamic_sampling": NONE,
        "rl.overlong": NONE,
        "rl.aggregation": "sequence_mean_token_mean",
        "rl.policy_loss": {"kind": "clipped_surrogate", "clip_low": 0.2, "clip_high": 0.2, "dual_clip": None},
        "rl.proximal": "rollout",
        "rl.optimizer.learning_rate": 1e-30,
        "rl.problems_per_step": 2,
        "rl_rounds.rl_1.sources": ["tens"],
        "rl_rounds.rl_1.steps": 2,
    }
    flags = rl_flags(taught, write_params(tmp_path / "params.yaml", changes), tmp_path)
    flags[flags.index("--problems") + 1] = str(problems)
    main(flags)
    assert all(row["groups/trained"] == row["groups/drawn"] == 2 for row in curve(tmp_path))
    assert dvc_md5(tmp_path / "rl_1" / "model.safetensors") == dvc_md5(taught / "sft" / "model.safetensors")
    drawn = set(read_table(tmp_path / "rl_1.parquet", ROLLOUT)["problem_id"])
    assert drawn == set(frame[frame["source"] == "tens"]["problem_id"])

    many = write_params(tmp_path / "many.yaml", changes | {"rl.problems_per_step": 4})
    flags[flags.index("--params") + 1] = str(many)
    with pytest.raises(UserError, match="holds 3 problems of tens, fewer than"):
        main(flags)


DIAGNOSTICS = {
    "advantage/variance",
    "clip_fraction/covariance",
    "clip_fraction/high",
    "clip_fraction/low",
    "entropy/mean",
    "importance/capped_fraction",
    "importance/effective_sample_fraction",
    "importance/weight_mean",
    "logprob_gap/k3",
    "logprob_gap/mean",
    "logprob_gap/token_max",
    "mask/entropy_token_fraction",
    "mask/fraction_dropped",
    "mask/outside_fraction",
    "mask/outside_token_fraction",
    "mask/overlong_fraction",
    "mask/token_fraction_dropped",
    "optim/gradient_norm",
    "pruning/outside_fraction",
    "ratio/token_max",
    "reference_kl/k3",
    "repetition/token_fraction",
    "variance_proxy/power",
    "variance_proxy/signal",
}


def check_everything(rows, metrics):
    names = {name for row in rows for name in row}
    assert names >= DIAGNOSTICS and not any(name.startswith("sum/") for name in names)
    assert metrics["selection/problems"] == metrics["selection/kept"] == 6
    assert sum(row.get("clip_fraction/covariance", 0.0) for row in rows) > 0
    # Skywork-OR1's controller, on the entropies that the curve has: first above the target, then below.
    coefficient, applied = 0.001, 0.001
    for row in rows:
        assert (row["entropy/coefficient"], row["entropy/coefficient_applied"]) == (coefficient, applied)
        is_low = row["entropy/mean"] < 0.1
        coefficient = min(max(coefficient + (0.0007 if is_low else -0.0007), 0.0), 0.002)
        applied = coefficient if is_low else 0.0
    assert {row["entropy/coefficient_applied"] > 0 for row in rows} == {True, False}
    assert all(row["mask/entropy_token_fraction"] == pytest.approx(0.3, abs=0.02) for row in rows)


def check_exact(rows, metrics):
    assert max(row["groups/carried"] for row in rows) > 0
    assert 0 < min(row["trust_region/acceptance_rate"] for row in rows) < 1
    assert all(0 < row["trust_region/divergence_max"] <= 0.003 for row in rows)
    assert all(row["trust_region/error_bound"] > 0 for row in rows)


def check_stale(rows, metrics):
    rows = [row for row in rows if "loss/policy" in row]
    assert rows[0]["logprob_gap/token_max"] < 1e-4 < rows[4]["logprob_gap/token_max"]  # two versions old
    assert min(row["trust_region/acceptance_rate"] for row in rows) < 1
    assert max(row["mask/trust_region_max_fraction"] for row in rows) > 0
    assert all(1 < row["turns/mean"] < 2 and row["tokens/observed"] > 0 for row in rows)


def check_judged(rows, metrics):
    """After five lessons the judge is noise, and the comparison with the rules must show it."""
    assert 0 < metrics["judge/right_fraction"] < 1 and metrics["judge/undecided_fraction"] == 0
    assert 0 < metrics["verdict/rule_agreement_fraction_mean"] < 1
    parts = ("rule_agreement", "false_correct", "false_wrong")
    for row in rows:
        assert sum(row[f"verdict/{part}_fraction"] for part in parts) == pytest.approx(1.0)


def check_stopped(rows, metrics):
    r"""Most responses are `\boxed{2}`, nine bytes. No end token follows, and they do not count as truncated."""
    assert sum(row["groups/drawn"] for row in rows) > 12, "the last of six problems are drawn again and again"
    assert all(row["length/truncated_fraction"] < 0.3 for row in rows)
    assert all(row["length/response_tokens_mean"] < 10 for row in rows)


def check_adapted(rows, metrics):
    """The reference is the policy itself, so the first update starts with a KL of 0."""
    assert abs(rows[0]["reference_kl/k3"]) < 1e-10 < rows[1]["reference_kl/k3"]
    first, last = (sum(row["accuracy/mean"] for row in part) / 3 for part in (rows[:3], rows[-3:]))
    assert last > first + 0.1
    assert metrics["sync/logprob_gap_max"] < 1e-4


def check_ppo(rows, metrics):
    """In the first step only the critic learns: it explains nothing before and something after it."""
    assert "loss/policy" not in rows[0] and all("loss/policy" in row for row in rows[1:])
    assert rows[0]["critic/value_mean"] == 0 and abs(rows[0]["critic/explained_variance"]) < 1e-9
    assert rows[1]["critic/value_mean"] != 0 and all(row["critic/loss"] > 0 for row in rows)
    assert metrics["progress/steps_without_update"] == 1 and metrics["critic/loss_mean"] > 0
    assert metrics["critic/explained_variance_last"] == pytest.approx(rows[-1]["critic/explained_variance"])


needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


@pytest.mark.parametrize(
    ("choice", "check"),
    [
        (EVERYTHING, check_everything),
        (EXACT_UNDER_MISMATCH, check_exact),
        (STALE, check_stale),
        (JUDGED, check_judged),
        (STOPPED, check_stopped),
        (PPO, check_ppo),
        pytest.param(ADAPTED, check_adapted, marks=needs_peft),
    ],
    ids=["everything", "exact", "stale", "judged", "stopped", "ppo", "adapter"],
)
def test_a_round_tells_its_diagnostics_goes_on_from_its_checkpoint_and_replays(
    choice, check, taught, tmp_path, monkeypatch
):
    params, recorded = write_params(tmp_path / "params.yaml", choice), tmp_path / "undisturbed"
    main(rl_flags(taught, params, recorded))
    check(curve(recorded), json.loads((recorded / "rl_1.json").read_text()))
    assert not list((tmp_path / "state").glob("scratch/*/judge"))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_three_steps(patch)
        main(rl_flags(taught, params, tmp_path / "resumed"))
    monkeypatch.setattr("stages.rl_round.prompt_selection._count", None)  # pass rates are not sampled again
    main(rl_flags(taught, params, tmp_path / "resumed"))
    assert_same(tmp_path / "resumed", recorded)

    if choice is not EXACT_UNDER_MISMATCH:  # whole distributions are not recorded
        monkeypatch.setattr(in_process, "build_sampler", None)
        monkeypatch.setattr(in_process, "Verifier", None)
        params = replay_params(tmp_path, choice, copied(recorded, tmp_path / "kept"))
        main(rl_flags(taught, params, tmp_path / "replayed"))
        assert_replayed(tmp_path / "replayed", recorded)


def test_under_top_k_and_top_p_the_trainer_renormalises_over_the_samplers_tokens(taught, tmp_path):
    """Both sides then agree before the first update, as they do without cuts."""
    choice = {
        "rl.top_k": 6,
        "rl.top_p": 0.8,
        "rl.study.rollout_distributions": {"kind": "likeliest", "count": 8, "max_gib": 0.01},
        "rl.rollout_correction": {**TRM, "divergence": "likeliest", "max_threshold": 0.01, "mean_threshold": None},
        "rl.minibatches": 2,
        "rl_rounds.rl_1.steps": 3,
    }
    main(rl_flags(taught, write_params(tmp_path / "params.yaml", choice), tmp_path))
    rows = [row for row in curve(tmp_path) if "loss/policy" in row]
    assert len(rows) == 3 and all(row["logprob_gap/token_max"] < 1e-4 for row in rows)
    assert all(row["sampler_set/unlisted_fraction"] == 0 for row in rows)
    # The first steps warm up. Later the second update starts from other weights, compared over the same tokens.
    divergences = [row["trust_region/divergence_max"] for row in rows]
    assert divergences[0] < 1e-9 < 1e-4 < divergences[2] <= 0.01
    assert all(0 < row["entropy/mean"] < math.log(6) for row in rows)


def lose_rollouts(pieces):
    (pieces / "000000002.parquet").unlink()


def lose_step(pieces):
    for name in ("000000001.parquet", "000000001.json"):
        (pieces / name).unlink()


def change_value(pieces):
    """Changes a value as a flipped bit does, without a change that Parquet itself detects."""
    frame = read_table(pieces / "000000002.parquet", ROLLOUT)
    frame["reward"] += 1
    write_table(frame, pieces / "000000002.parquet", ROLLOUT)


def cut_fates(pieces):
    content = (pieces / "000000002.json").read_bytes()
    (pieces / "000000002.json").write_bytes(content[: len(content) // 2])


def swap_steps(pieces):
    first, second = pieces / "000000001.parquet", pieces / "000000002.parquet"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def flip_bit(name, pieces):
    content = bytearray((pieces.parent / name).read_bytes())
    content[len(content) // 2] ^= 1
    (pieces.parent / name).write_bytes(bytes(content))


def test_a_damaged_file_of_the_scratch_folder_changes_no_result(taught, tmp_path, monkeypatch, capfd):
    """The round starts again from an intact checkpoint: with one checkpoint kept, from the beginning."""
    params = write_params(tmp_path / "params.yaml", {"rl_rounds.rl_1.steps": 5})
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    main(rl_flags(taught, params, tmp_path / "undisturbed"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_three_steps(patch)
        main(rl_flags(taught, params, tmp_path / "killed"))
    capfd.readouterr()
    [scratch] = tmp_path.glob("state/scratch/rl_round-*")
    files = [*scratch.glob("rollouts/000000001.*"), *scratch.glob("step-*/*")]
    flips = [partial(flip_bit, str(file.relative_to(scratch))) for file in files]
    assert len(flips) > 5
    damages = [None, lose_rollouts, lose_step, change_value, cut_fates, swap_steps, *flips]
    for number, damage in enumerate(damages):
        name = f"{number}-{damage.args[0] if damage in flips else damage}".replace("/", "-")
        monkeypatch.setenv("RETRACE_STATE", str(tmp_path / name / "state"))
        shutil.copytree(tmp_path / "state", tmp_path / name / "state")
        [pieces] = (tmp_path / name).glob("state/scratch/rl_round-*/rollouts")
        if damage:
            damage(pieces)
        main(rl_flags(taught, params, tmp_path / name / "out"))
        assert_same(tmp_path / name / "out", tmp_path / "undisturbed")
        said = capfd.readouterr().err
        assert ("is not used" in said, "resuming from step 2" in said) == (bool(damage), not damage), name


def test_a_piece_of_the_rollouts_that_is_lost_before_the_end_is_an_error(taught, tmp_path, monkeypatch):
    params = write_params(tmp_path / "params.yaml", {"rl_rounds.rl_1.steps": 3})
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    finish = RolloutLog.finish

    def lose(log, *arguments):
        finish(log, *arguments)
        (log.folder / "000000003.parquet").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(RolloutLog, "finish", lose)
        with pytest.raises(UserError, match=r"000000003\.parquet is missing or has changed"):
            main(rl_flags(taught, params, tmp_path / "out"))
    assert not (tmp_path / "out/rl_1.json").exists()
    main(rl_flags(taught, params, tmp_path / "out"))
    main(rl_flags(taught, params, tmp_path / "undisturbed"))
    assert_same(tmp_path / "out", tmp_path / "undisturbed", (*REPLAYED, "rl_1.json"))


def test_a_loss_that_is_not_finite_names_step_problems_and_checkpoint(taught, tmp_path, monkeypatch):
    """The third step gets a reward of NaN; there is one checkpoint before it."""
    prepare = training_step.prepare_samples

    def poisoned(groups, plan, *others):
        samples = prepare(groups, plan, *others)
        if plan.newest_version == 2:
            samples.advantages[0] = float("nan")
        return samples

    monkeypatch.setattr(training_step, "prepare_samples", poisoned)
    params = write_params(tmp_path / "params.yaml", {"rl.dynamic_sampling": {"kind": "none"}})
    with pytest.raises(FloatingPointError) as told:
        main(rl_flags(taught, params, tmp_path))
    assert re.search(
        r"rl_1, step 3: loss nan, .*weights were left as they were\. The batch's problems are p\d(, p\d){3}; "
        r"the last checkpoint is \S*step-000000002\.",
        str(told.value),
    )
    assert not (tmp_path / "rl_1").exists()
