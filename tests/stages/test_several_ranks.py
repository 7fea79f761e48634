"""Stages on several real ranks over gloo: each samples a share with its engine, and the result equals one rank's."""

import importlib.util
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages.__main__ import main
from stages.demonstrate.run import sample_demonstrations
from stages.demonstrate.stage import RejectionSampledDemonstrations
from stages.engines.samplers.build import DrawingShare
from stages.engines.trainers.one_rank import launched_ranks
from stages.engines.verifier import judged_responses
from stages.filter_web.agreement import keep_agreeing
from stages.filter_web.stage import PolicyAgreement
from stages.foundations.job import attempt_at
from stages.foundations.tables import PROBLEM, ROLLOUT, Funnel, read_table
from stages.rl_round.loop import synchronous
from tests.fakes.forks import on_ranks
from tests.fakes.rounds import EVERYTHING, PPO, curve
from tests.fakes.taught_policy import PARAMS, rl_flags, stage_flags, write_params

pytestmark = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
ZERO = {
    "kind": "deepspeed",
    "zero_stage": 2,
    "offload_optimizer": False,
    **{name: PARAMS["trainer"][name] for name in ("dtype", "threads", "gradient_checkpointing")},
    "micro_batch_tokens": 96,
}
REJECTION = RejectionSampledDemonstrations(
    kind="rejection_sampled", samples=4, kept_per_problem=2, temperature=1.0, max_response_tokens=12, max_problems=None
)
AGREEMENT = PolicyAgreement(kind="policy", samples=2, temperature=1.0, max_response_tokens=12, max_candidates=None)
HELD_OUT = {"every_steps": 1, "problems": 8, "samples": 2, "temperature": 1.0, "keep": "best", "patience": 3}
TEACHER = {"rl_rounds.rl_1.distillation": {"coefficient": 0.5}}
CHOICES = {
    "plain": {"rl_rounds.rl_1.steps": 3, "trainer.micro_batch_tokens": 96, "rl.evaluation": HELD_OUT},
    "everything": {**EVERYTHING, **TEACHER, "rl_rounds.rl_1.steps": 2, "trainer.micro_batch_tokens": 96},
    "critic": {**PPO, "rl_rounds.rl_1.steps": 3, "trainer.micro_batch_tokens": 96},
}
"""The first evaluates and keeps its best weights. The second has a baseline that compares tokens, a reference, a
teacher, and a selection by pass rates. The third has a critic, and is stopped as the first is."""

STOPPED = ("plain", "critic")


@contextmanager
def stopped_after_pieces(count):
    """Ends sampling on each rank, as a kill would, once `count` pieces have been assembled."""
    with pytest.MonkeyPatch.context() as patch:
        whole, left = DrawingShare.everywhere, iter([True] * count)

        def everywhere(share, drawn, of_prompts):
            if not next(left, False):
                raise KeyboardInterrupt
            return whole(share, drawn, of_prompts)

        patch.setattr(DrawingShare, "everywhere", everywhere)
        yield


@pytest.fixture(scope="module")
def rounds(taught, tmp_path_factory):
    """Returns folders of each choice's round on one rank and on several.

    The plain one and the critic's are stopped after their checkpoint on two ranks, and finish on three.
    """
    out = tmp_path_factory.mktemp("ranks")
    patch = pytest.MonkeyPatch()
    patch.setenv("RETRACE_TRACKING", "off")
    patch.setenv("RETRACE_STATE", str(out / "state"))
    patch.chdir(out)
    shutil.copytree(taught / "base", "data/teachers/rl_1/policy")

    def run(name: str, kind: str, trainer: dict) -> None:
        folder = out / f"{name}-{kind}"
        folder.mkdir(exist_ok=True)
        file = folder / f"params-{os.environ.get('RANK', '0')}.yaml"
        main(rl_flags(taught, write_params(file, {**trainer, **CHOICES[name]}), folder))

    patch.setattr(judged_responses, "RESPONSES_AT_ONCE", 16)

    def draw(kind: str) -> None:
        """Samples without training: evaluation, rejection sampling, agreement."""
        folder = out / kind
        folder.mkdir(exist_ok=True)
        prompts = [{"kind": "plain", "template": text} for text in ("{problem} ", "{problem} again ")]
        choice = {"policy": "sft", "max_problems": 5}
        choice["candidates"] = [{"prompt": one, "max_response_tokens": 12} for one in prompts]
        file = folder / f"params-{os.environ.get('RANK', '0')}.yaml"
        params = write_params(file, {"respond.baseline_prompts": choice})
        inputs = {"validation": taught / "problems.parquet", "benchmarks": taught / "benchmarks.parquet"}
        outputs = {"responses": folder / "responses.parquet", "metrics": folder / "respond.json"}
        main(stage_flags("respond@sft", params=params, policy=taught / "sft", **inputs, **outputs))
        problems = read_table(taught / "problems.parquet", PROBLEM).to_dict("records")
        candidates = [{**row, "candidate_id": row["problem_id"]} for row in problems]
        attempt = attempt_at("demonstrate", {"kind": kind}, {})
        with launched_ranks() as ranks:
            inputs = params, taught / "sft", attempt, ranks
            if kind == "several":
                with pytest.raises(KeyboardInterrupt), stopped_after_pieces(1):
                    sample_demonstrations(REJECTION, problems, *inputs)
                assert len(list(attempt.pieces.glob("*.json"))) == 1
            sampled = sample_demonstrations(REJECTION, problems, *inputs)
            kept = keep_agreeing(candidates, Funnel("test", 6), AGREEMENT, *inputs)
            (folder / f"drawn-{ranks.rank}.json").write_text(json.dumps([sampled, kept]))

    def on_two() -> None:
        draw("several")
        run("everything", "several", {"trainer": ZERO})
        train = synchronous.train_step

        def stopped(context, step, *others):
            if step == 2:
                raise KeyboardInterrupt
            return train(context, step, *others)

        synchronous.train_step = stopped
        for name in STOPPED:
            with pytest.raises(KeyboardInterrupt):
                run(name, "several", {"trainer": ZERO})

    draw("one")
    for name in CHOICES:
        run(name, "one", {})
    on_ranks(on_two, 2)
    assert list((out / "state").glob("scratch/*/step-*/rank-00001.safetensors"))
    assert list((out / "state").glob("scratch/*/step-*/critic/rank-00001.safetensors"))
    on_ranks(lambda: [run(name, "several", {"trainer": ZERO}) for name in STOPPED], 3)
    patch.undo()
    return out


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in load_file(folder / "rl_1" / "model.safetensors").values()])


@pytest.mark.parametrize("choice", CHOICES)
def test_ranks_draw_what_one_draws_and_learn_the_same(rounds, choice):
    one, several = (rounds / f"{choice}-{kind}" for kind in ("one", "several"))
    alone, together = (read_table(folder / "rl_1.parquet", ROLLOUT) for folder in (one, several))
    exact = ["problem_id", "step", "sample_index", "policy_version", "response", "verdict", "reward", "is_trained"]
    assert together[exact].equals(alone[exact])
    for first, second in zip(alone["token_ids"], together["token_ids"], strict=True):
        assert first.tolist() == second.tolist()
    for first, second in zip(alone["rollout_logprobs"], together["rollout_logprobs"], strict=True):
        assert second == pytest.approx(first, abs=1e-4)
    gaps = (weights(several) - weights(one)).abs()
    # Adam turns the rounding of almost zero gradients into steps of some size: few, and small compared with 2e-3.
    assert gaps.max() < 2e-4
    assert gaps.mean() < 1e-6
    rows = list(zip(curve(one), curve(several), strict=True))
    assert rows and all(("distillation/reverse_kl" in row) == (choice == "everything") for row, _ in rows)
    for alone, together in rows:
        assert together == pytest.approx(alone, rel=1e-3, abs=1e-4)


def test_stages_that_train_nothing_use_all_ranks_too_and_go_on(rounds):
    for name in ("responses.parquet", "respond.json"):
        assert (rounds / "several" / name).read_bytes() == (rounds / "one" / name).read_bytes()
    expected = json.loads((rounds / "one" / "drawn-0.json").read_text())
    (rows, drops), kept = expected
    assert rows and drops and 0 < len(kept) < 6, "else there is nothing to compare"
    for rank in (0, 1):
        assert json.loads((rounds / "several" / f"drawn-{rank}.json").read_text()) == expected
