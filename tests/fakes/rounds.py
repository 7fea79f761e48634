"""Rounds of the tiny policy: settings to choose from, hand-made groups, outputs to compare, and their replay."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Sample, StopReason
from stages.foundations.files import dvc_md5
from stages.rl_round.loop import synchronous
from stages.rl_round.params import RlParams
from stages.rl_round.records import Group, Rollout
from tests.fakes.engine_params import LORA
from tests.fakes.taught_policy import PARAMS, write_params

NONE = {"kind": "none"}
OTB = {"kind": "optimal_token_baseline", "lone_tail": "zero", "is_importance_weighted": False}
TRM = {"kind": "trust_region_masking", "max_threshold": 0.05, "mean_threshold": 0.001, "divergence": "sampled"}
WEIGHTS = {"kind": "importance_weights", "level": "token", "cap": 2.0}
CLIP_COV = {"kind": "clip_cov", "clip_low": 0.2, "clip_high": 0.28, "fraction": 0.1}
CLIP_COV |= {"covariance_low": 0.1, "covariance_high": 5.0}
BONUS = {"kind": "adaptive", "target": 0.1, "first_coefficient": 0.001, "coefficient_step": 0.0007}
BONUS |= {"max_coefficient": 0.002}
SAFE_SET = {"kind": "safe_set", "log_threshold": -13.0, "outside": "drop_token"}
COSINE = {"kind": "cosine", "r0_correct": 2, "rL_correct": 1, "r0_wrong": -10, "rL_wrong": 0, "exceeded": -10}
NGRAM = {"kind": "ngram", "n": 4, "penalty": -0.05, "discount": 0.99}
MODEL = {
    "kind": "model",
    "reading": {"kind": "likelier_word", "undecided_margin": 0.0},
    "teaching": {"kind": "made_pairs", "steps": 5, "pairs_per_step": 8, "learning_rate": 0.005},
}
WHOLE = {"kind": "whole", "max_gib": 1.0}
EXACT = {"rollout_correction": {**TRM, "divergence": "exact"}, "study": {"rollout_distributions": WHOLE}}
ASYNCHRONOUS = {
    "kind": "asynchronous",
    "window": 2,
    "replica_share": 1.0,
    "takes_groups": "when_empty",
    "report_seconds": 0.1,
    "repack": NONE,
    "relay": {"keep": 3, "chunk_mib": 16},
    "stalled_seconds": 60.0,
    "trainer_ranks": 1,
}
ALL_PASS_RATES = {"kind": "pass_rate", "samples": 4, "min": 0.0, "max": 1.0}
UNBOUNDED = {"rl.weight_sync_check.max_logprob_gap": None}
EVERYTHING = {
    "rl.advantage": {**OTB, "lone_tail": "return", "is_importance_weighted": True},
    "rl.policy_loss": CLIP_COV,
    "rl.rollout_correction": {**WEIGHTS, "batch_normalized": True},
    "rl.aggregation": "prompt_mean",
    "rl.top_entropy_fraction": 0.7,
    "rl.entropy_bonus": BONUS,
    "rl.study.vocabulary_pruning": SAFE_SET,
    "rl.reference_kl": {"kind": "weighted_k3", "coefficient": 0.01},
    "rl.study.repetition_penalty": {**NGRAM, "n": 2},
    "rl.study.reward_discount": 0.99,
    "rl.overlong_filtering": True,
    "rl_rounds.rl_1.prompt_selection": ALL_PASS_RATES,
    "rl_rounds.rl_1.steps": 5,
}
"""Every option that can be combined with the others."""
EXACT_UNDER_MISMATCH = {
    "rl.study.mismatch": {"kind": "bfloat16_weights"},
    **UNBOUNDED,
    "rl.rollout_correction": {**TRM, "max_threshold": 0.003, "divergence": "exact"},
    "rl.study.rollout_distributions": {"kind": "whole", "max_gib": 0.01},
    "rl.study.vocabulary_pruning": SAFE_SET,
    "rl_rounds.rl_1.prompt_selection": ALL_PASS_RATES,
    "rl_rounds.rl_1.steps": 5,
}
"""Trust region masking by the exact KL, with surplus groups whose distributions outlive a checkpoint."""
STALE = {
    "rl.study.mismatch": {"kind": "stale_weights", "versions": 2},
    **UNBOUNDED,
    "rl.rollout_correction": {**TRM, "max_threshold": 0.02, "mean_threshold": None},
    "rl.proximal": "rollout",
    "prompt.forced_end": {"kind": "phrase", "thinking_tokens": [8, 9], "mark": "}", "text": ";"},
    "rl_rounds.rl_1.steps": 7,
}
"""A sampler that serves the weights of two versions ago, also in the steps after a checkpoint. Many of its responses
must end one token before they would have their answer."""
JUDGED = {
    "rl.verifier": MODEL,
    "rl.dynamic_sampling": NONE,
    "rl_rounds.rl_1.steps": 5,
    "rl_rounds.rl_1.prompt_selection": ALL_PASS_RATES,
}
"""A policy that is trained to judge and then judges."""
STOPPED = {
    "sampler.stop": ["}"],
    "rl.reference_kl": {"kind": "k3", "coefficient": 0.01, "reset_every_steps": 2, "resets_optimizer": True},
    "rl.checkpoint_every_steps": 3,
    "rl_rounds.rl_1.prompt_selection": {"kind": "no_positive_resampling", "pass_rate": 0.5},
    "rl_rounds.rl_1.steps": 5,
}
"""Responses end with the brace of their box; a checkpoint holds solved problems, and a reference of its own."""
ADAPTED = {
    "rl.adapter": {**LORA.model_dump(), "rank": 16, "alpha": 32},
    "rl.optimizer.learning_rate": 0.01,
    "rl.reference_kl": {"kind": "k3", "coefficient": 0.001},
    "rl.minibatches": 1,
    "rl_rounds.rl_1.steps": 12,
}
"""LoRA, and a reference that needs no second policy."""
CRITIC = {"optimizer": {**PARAMS["rl"]["optimizer"], "learning_rate": 0.01}, "value_clip": 0.5, "warmup_steps": 1}
GAE = {"kind": "gae", "discount": 1.0, "gae_lambda": 0.95, "critic": CRITIC}
PPO = {
    "rl.advantage": GAE,
    "rl.advantage_whitening": "tokens",
    "rl.reference_kl": {"kind": "in_reward", "coefficient": 0.05},
    "rl.group_size": 1,
    "rl.problems_per_step": 6,
    "rl.dynamic_sampling": NONE,
    "rl_rounds.rl_1.steps": 7,
}
"""PPO: a critic, and one response to each problem."""

REPLAYED = ("rl_1", "rl_1.parquet", "schedules/rl_1")
"""Outputs that a replay reproduces."""
OUTPUTS = (*REPLAYED, "rl_1.csv", "rl_1.json")


def settings(**changes) -> RlParams:
    """Returns section `rl` with other values."""
    return RlParams.model_validate({**PARAMS["rl"], **changes})


def rollout(tokens, verdict=Verdict.CORRECT, reward=1.0, stop=StopReason.END_OF_SEQUENCE, version=0, logprobs=None):
    """Returns a response with these tokens."""
    return Rollout(Sample(tokens, logprobs or [-5.0] * len(tokens), stop, version), "", verdict, reward)


def group(verdicts, name="p", version=0, stop=StopReason.END_OF_SEQUENCE):
    """Returns a group; each letter is a verdict: correct, wrong, unparsed, timed out."""
    kinds = {"c": Verdict.CORRECT, "w": Verdict.WRONG, "u": Verdict.UNPARSED, "t": Verdict.TIMED_OUT}
    return Group(name, [1], tuple(rollout([5], kinds[letter], 0.0, stop, version) for letter in verdicts))


def curve(out: Path) -> list[dict[str, float]]:
    """Returns the round's rows, without values that a step did not measure."""
    with (out / "rl_1.csv").open() as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def assert_same(one: Path, other: Path, names=OUTPUTS) -> None:
    """Asserts that outputs are equal byte for byte."""
    assert {name: dvc_md5(one / name) for name in names} == {name: dvc_md5(other / name) for name in names}


def assert_replayed(replayed: Path, recorded: Path) -> None:
    """Asserts that outputs and rows of the curve are equal."""
    assert_same(replayed, recorded, REPLAYED)
    assert len(curve(replayed)) == len(curve(recorded))
    assert_rows_replayed(replayed, recorded)


def assert_rows_replayed(replayed: Path, recorded: Path) -> None:
    """Asserts equal rows: replayed ones lack values of sampler and judge, and add rates by staleness."""
    unknown = ("sync/logprob_gap_max", "verdict/rule_agreement", "verdict/false_")
    for there, here in zip(curve(recorded), curve(replayed), strict=False):
        known = {name: value for name, value in there.items() if not name.startswith(unknown)}
        assert {name: value for name, value in here.items() if "_staleness_" not in name} == known


def kill_after_three_steps(monkeypatch) -> None:
    """Stops the next round before its fourth step; it has a checkpoint after every second step."""
    train = synchronous.train_step

    def killed(this_round, step, *others):
        if step == 3:
            raise KeyboardInterrupt
        return train(this_round, step, *others)

    monkeypatch.setattr(synchronous, "train_step", killed)


def copied(recorded: Path, folder: Path) -> Path:
    """Copies schedule and rollouts as a user keeps them, into a folder with another name."""
    shutil.copytree(recorded / "schedules" / "rl_1", folder)
    shutil.copy(recorded / "rl_1.parquet", folder / "rollouts.parquet")
    return folder


def replay_params(tmp_path: Path, changes: dict, folder: Path) -> Path:
    """Writes parameters for a replay of the schedule in `folder`."""
    return write_params(tmp_path / "replay.yaml", {**changes, "rl.loop": {"kind": "replay", "schedule": str(folder)}})
