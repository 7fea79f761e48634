"""Code around the steps of a round: the probe of every sync, checkpoints, and the message that nothing is learned."""

import re
from types import SimpleNamespace

import pytest
import torch

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.language_model import language_model
from stages.engines.replicas.replica import SyncError
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import FullSample, Sample, StopReason
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.rl_round.drawing import DrawState
from stages.rl_round.loop.batch_source import BatchSource, SampledBatches
from stages.rl_round.loop.round_log import SignalWatch
from stages.rl_round.loop.training_step import learning_rate_scale
from stages.rl_round.loop.weight_sync import RoundState, WeightSync, WeightSyncCheck, load_state, save_state
from stages.rl_round.params import WeightSyncCheckParams
from stages.rl_round.problem_order import ProblemCursor
from stages.rl_round.records import Group, Rollout
from tests.fakes.rounds import group, settings
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy


@pytest.fixture
def both_sides(tmp_path):
    folder = write_tiny_policy(tmp_path / "policy")
    trainer_params = TorchTrainerParams.model_validate(PARAMS["trainer"])
    optimizer = settings().optimizer
    trainer = TorchTrainer(trainer_params, optimizer, 1.0, language_model(folder, trainer_params))
    sampler = TorchSampler.from_folder(TorchSamplerParams.model_validate(PARAMS["sampler"]), folder)
    return trainer, sampler


def make_probe(sampler, max_logprob_gap=1e-4):
    params = WeightSyncCheckParams(sequences=2, max_logprob_gap=max_logprob_gap)
    return WeightSyncCheck.drawn(params, [[3, 4], [5], [6]], 8, sampler, seed=0)


def disturb(trainer, size):
    with torch.no_grad():
        for _, weight in trainer.named_weights():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * size)


def sync(probe, trainer, sampler, version):
    from_trainer = probe.trainer_side(trainer)
    sampler.load_weights(trainer.named_weights(), version)
    return probe.check(sampler, from_trainer)


@pytest.mark.parametrize(
    ("bound", "change", "error"),
    [
        (1e-4, 0.05, "differs by"),
        # A learning rate of 1e-6 moves log-probs by less than the bound, so only unchanged log-probs reveal the fault.
        (1.0, 0.01, "did not reach the sampler"),
        # The sampler is stale on purpose: the gap is measured and nothing is rejected.
        (None, 0.05, None),
    ],
)
def test_a_sync_that_does_not_arrive_fires_where_it_is_bounded(both_sides, monkeypatch, bound, change, error):
    trainer, sampler = both_sides
    probe = make_probe(sampler, max_logprob_gap=bound)
    sync(probe, trainer, sampler, 1)
    monkeypatch.setattr(sampler, "load_weights", lambda tensors, version: None)
    disturb(trainer, change)
    if error is None:
        assert sync(probe, trainer, sampler, 2) > 1e-4
    else:
        with pytest.raises(SyncError, match=error):
            sync(probe, trainer, sampler, 2)


def test_nan_is_no_agreement(both_sides):
    trainer, sampler = both_sides
    probe = make_probe(sampler)
    with torch.no_grad():
        next(iter(trainer.named_weights()))[1].fill_(torch.nan)
    with pytest.raises(SyncError, match="differs by nan"):
        sync(probe, trainer, sampler, 1)


def right(sample):
    return Rollout(sample, "7", Verdict.CORRECT, 1.0)


def test_surplus_groups_come_back_with_their_versions_and_distributions(both_sides, tmp_path):
    trainer, _ = both_sides
    rows = torch.randn(3, 5).log_softmax(-1)
    rows[1, 2] = -torch.inf
    full = FullSample([1, 2, 0], [-0.1, -1 / 3, -2e-9], StopReason.END_OF_SEQUENCE, 2, distributions=rows)
    plain = Sample([4], [-0.5], StopReason.MAX_TOKENS, 1)
    groups = [Group("a", [3], (right(plain),)), Group("b", [5], (right(plain), right(full)))]
    context = SimpleNamespace(trainer=trainer, reference=None, critic=None)
    source, weights = SampledBatches(context, None), WeightSync()
    source.state = DrawState(ProblemCursor(8, {"a": [1, 2]}, {"b": 1.0}), 0.5, groups)
    state = RoundState(2, 2, [{"step": 1.0}])
    save_state(Checkpoints(tmp_path), state, context, source, weights, None)
    again = SampledBatches(context, None)
    assert load_state(Checkpoints(tmp_path), context, again, weights) == state
    assert again.state == source.state
    assert type(again.state.carried[0].rollouts[0].sample) is Sample
    assert torch.equal(again.state.carried[1].rollouts[1].sample.distributions, rows)


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ([group("cccc")] * 3 + [group("wwww")], "75% all right.*too easy.*prompt_selection"),
        ([group("wwww")] * 4, "0% all right.*too hard.*sft.steps.*rl.group_size"),
        (
            [group("uuuu", stop=StopReason.MAX_TOKENS)] * 4,
            "100% of responses cut off, 100% without an answer.*rl.max_response_tokens",
        ),
    ],
)
def test_three_steps_in_vain_are_told_with_the_remedy(drawn, told):
    watch = SignalWatch()
    assert watch.see(drawn) is None and watch.see(drawn) is None
    assert re.search(f"for 3 steps.*{told}", watch.see(drawn))


def test_it_is_told_again_when_the_steps_have_doubled_and_forgotten_with_the_first_signal():
    watch, nothing = SignalWatch(), [group("wwww")]
    told = [watch.see(nothing) is not None for _ in range(12)]
    assert [step for step, is_told in enumerate(told, start=1) if is_told] == [3, 6, 12]
    assert watch.see([group("cw"), *nothing]) is None
    assert [watch.see(nothing) is not None for _ in range(3)] == [False, False, True]
    watch = SignalWatch()
    for drawn in (nothing, [], nothing, []):  # a step that drew nothing does not count
        assert watch.see(drawn) is None
    assert watch.see(nothing)


def test_a_damaged_checkpoint_is_gone_before_one_of_an_earlier_step_is_written(both_sides, tmp_path):
    """The checkpoint with the highest number counts as the last one written."""
    trainer, _ = both_sides
    context = SimpleNamespace(trainer=trainer, reference=None, critic=None)
    checkpoints, source, weights = Checkpoints(tmp_path), BatchSource(), WeightSync()
    save_state(checkpoints, RoundState(4, 4, [{"step": 4}]), context, source, weights, None)
    (checkpoints.folder(4) / "round.json").write_text("{}")
    assert load_state(checkpoints, context, source, weights) == RoundState()
    state = RoundState(2, 2, [{"step": 2}])
    save_state(checkpoints, state, context, source, weights, None)
    assert load_state(checkpoints, context, source, weights) == state


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (None, [0.5, 1, 1, 1, 1, 1]),
        ({"kind": "cosine", "final_fraction": 0.1}, [0.5, 1, 0.775, 0.325, 0.1]),
        ({"kind": "linear", "final_fraction": 0.1}, [0.5, 1, 0.7, 0.4, 0.1]),
    ],
)
def test_the_learning_rate_warms_up_and_falls_to_its_last_share(schedule, expected):
    """Warm-up of two steps: the second has the whole rate, and so has the third, from which the fall is counted."""
    expected = expected if schedule is None else [*expected[:2], 1, *expected[2:]]
    rl = settings(schedule=schedule) if schedule else settings()
    of_round = SimpleNamespace(params=rl, settings=SimpleNamespace(steps=6, warmup_steps=2))
    assert [learning_rate_scale(step, of_round) for step in range(6)] == pytest.approx(expected)
