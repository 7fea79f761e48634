"""A round with a critic: it learns in both loops, through deaths of the trainer and kills, with and without groups."""

import os
import sys

import pytest

from stages.__main__ import main
from stages.foundations.tables import ROLLOUT, read_table
from tests.fakes.asynchronous_round import play_in_one_process
from tests.fakes.forks import killed_at_first_checkpoint
from tests.fakes.rounds import ASYNCHRONOUS, CRITIC, GAE, PPO, assert_same, curve
from tests.fakes.taught_policy import rl_flags, write_params

LOOP = {"rl.loop": {**ASYNCHRONOUS, "window": 0}, "sampler.replicas": {"kind": "ray", "count": 2}}


def run(taught, folder, *changes):
    folder.mkdir(exist_ok=True)
    merged = dict(PPO)
    for more in changes:
        merged |= more
    main(rl_flags(taught, write_params(folder / "params.yaml", merged), folder))


def of_critic(folder):
    return [{name: one[name] for name in one if name.startswith("critic/")} for one in curve(folder)]


def test_a_trainer_that_is_lost_goes_on_with_its_critic_in_the_asynchronous_loop(taught, tmp_path, monkeypatch):
    """With window 0 it trains on the responses of the synchronous loop, so weights and values must be the same."""
    run(taught, tmp_path / "synchronous")
    deaths = [("start", None), *(("train", step) for step in (1, 4))]
    is_lost = lambda *call: call in deaths and not deaths.remove(call)  # noqa: E731
    play_in_one_process(monkeypatch, tmp_path / "weights", is_lost)
    run(taught, tmp_path / "asynchronous", LOOP)
    assert not deaths
    assert_same(tmp_path / "asynchronous", tmp_path / "synchronous", ("rl_1",))
    assert of_critic(tmp_path / "asynchronous") == of_critic(tmp_path / "synchronous")


@pytest.mark.slow
def test_a_killed_round_ends_with_the_bytes_of_an_undisturbed_one(taught, tmp_path):
    run(taught, tmp_path / "undisturbed", {"rl_rounds.rl_1.steps": 12})
    (tmp_path / "killed").mkdir()
    params = write_params(tmp_path / "killed/params.yaml", {**PPO, "rl_rounds.rl_1.steps": 12})
    flags = rl_flags(taught, params, tmp_path / "killed")
    command = [sys.executable, "-m", "stages", *flags]
    assert killed_at_first_checkpoint(command, dict(os.environ), tmp_path / "state")
    assert len(list((tmp_path / "state").glob("scratch/*/step-*/critic/trainer.safetensors"))) == 1
    main(flags)
    assert_same(tmp_path / "killed", tmp_path / "undisturbed")


def test_a_critic_warms_up_alone_and_leaves_the_policy_as_it_was(taught, tmp_path):
    critic = {**CRITIC, "warmup_steps": 3}
    run(taught, tmp_path, {"rl.advantage": {**GAE, "critic": critic}, "rl_rounds.rl_1.steps": 4})
    rows = curve(tmp_path)
    assert ["optim/gradient_norm" in row for row in rows] == [False, False, False, True]
    assert all(row["critic/gradient_norm"] > 0 for row in rows)
    frame = read_table(tmp_path / "rl_1.parquet", ROLLOUT)
    assert len(frame) == 24 and not frame["policy_version"].any(), "no step before the last one has changed the policy"
