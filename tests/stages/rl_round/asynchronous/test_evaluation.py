"""Held-out problems in asynchronous rounds: points, kept weights and early stop as in the synchronous loop, also after
deaths.

With window 0 and no dynamic sampling both loops train on the same responses, so their evaluations must be equal.
"""

import json
import math
import os
import shutil
import signal

import pytest

from stages.__main__ import main
from stages.foundations.errors import UserError
from stages.rl_round.asynchronous import hub, trainer, trainers
from stages.rl_round.asynchronous import round as asynchronous_round
from tests.fakes.asynchronous_round import play_in_one_process
from tests.fakes.bit_rot import flip, random_bits
from tests.fakes.forks import killed_at
from tests.fakes.rounds import ASYNCHRONOUS, BONUS, NONE, assert_same, copied, curve, replay_params
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params

EVALUATION = {"every_steps": 2, "problems": 8, "samples": 4, "temperature": 1.0, "keep": "best", "patience": None}
CHANGES = {
    "seed": 1,
    "rl_rounds.rl_1.steps": 8,
    "rl.dynamic_sampling": NONE,
    # So fast that the policy forgets its training: its best weights are not its last.
    "rl.optimizer": {**PARAMS["rl"]["optimizer"], "learning_rate": 0.004},
    "rl.checkpoint_every_steps": 3,
    # Its coefficient is a state of the trainer, which no death may change.
    "rl.entropy_bonus": {**BONUS, "target": 0.12},
    # What else both loops must do alike, also after deaths.
    "rl.reference_kl": {"kind": "k3", "coefficient": 0.001, "reset_every_steps": 2, "resets_optimizer": True},
    "rl_rounds.rl_1.prompt_selection": {"kind": "no_positive_resampling", "pass_rate": 0.75},
    "prompt.forced_end": {"kind": "phrase", "thinking_tokens": [8, 10], "mark": "}", "text": ";"},
}
LOOP = {"rl.loop": {**ASYNCHRONOUS, "window": 0}, "sampler.replicas": {"kind": "ray", "count": 2}}


def run(taught, folder, *changes, **evaluation):
    """Returns the round's metrics; outputs go to `folder`."""
    folder.mkdir(exist_ok=True)
    merged = {**CHANGES, "rl.evaluation": {**EVALUATION, **evaluation}}
    for more in changes:
        merged |= more
    main(rl_flags(taught, write_params(folder / "params.yaml", merged), folder))
    return json.loads((folder / "rl_1.json").read_text())


def evaluated(folder):
    """Returns the points of the held-out curve."""
    points = [{name: one[name] for name in one if name.startswith("evaluation/")} for one in curve(folder)]
    return [(one["step"], point) for one, point in zip(curve(folder), points, strict=True) if point]


def of_evaluation(metrics):
    return {name: value for name, value in metrics.items() if name.startswith("evaluation/")}


@pytest.fixture(scope="module")
def synchronous(taught, tmp_path_factory):
    folder = tmp_path_factory.mktemp("synchronous")
    metrics = run(taught, folder)
    assert 0 < metrics["evaluation/best_step"] < 8, "else the kept weights would say little"
    applied = [row["entropy/coefficient_applied"] for row in curve(folder)[1:]]
    assert len({value for value in applied if value}) > 1, applied
    return folder, of_evaluation(metrics)


def test_it_evaluates_and_keeps_what_the_synchronous_loop_does(taught, synchronous, tmp_path, monkeypatch, capfd):
    folder, metrics = synchronous
    patience = play_in_one_process(monkeypatch, tmp_path / "weights")
    assert of_evaluation(run(taught, tmp_path / "out", LOOP)) == metrics
    assert [step for step, _ in evaluated(tmp_path / "out")] == [0, 2, 4, 6, 8]
    assert evaluated(tmp_path / "out") == evaluated(folder)
    assert_same(tmp_path / "out", folder, ("rl_1",))
    assert capfd.readouterr().err.count("rl_1: held-out accuracy") == 5
    # The start and the first step with an evaluation may take longer, the policy as long as a start, all others less.
    assert all(map(math.isfinite, patience))
    assert [one > trainers.START_SECONDS for one in patience] == [True, False, True, *[False] * 7]
    assert patience[1] == patience[-1] == trainers.START_SECONDS
    trace = json.loads((tmp_path / "out/schedules/rl_1/timeline.json").read_text())
    assert trace["otherData"]["seconds"]["trainer"]["evaluate"] > 0


def test_a_round_whose_trainer_is_lost_has_the_same_points(taught, synchronous, tmp_path, monkeypatch):
    """It dies at the start, with the best weights in a new checkpoint, and with evaluations that no checkpoint has.

    It also dies while it writes the policy, after a last step at which another round would have written a checkpoint.
    """
    folder, metrics = synchronous
    deaths = [("start", None), *(("train", step) for step in (1, 3, 4, 7)), ("save_model", None)]

    def is_lost(method, argument):
        call = method, argument if method == "train" else None
        return call in deaths and not deaths.remove(call)

    play_in_one_process(monkeypatch, tmp_path / "weights", is_lost)
    found = run(taught, tmp_path / "out", LOOP, {"rl.checkpoint_every_steps": 4})
    assert of_evaluation(found) == metrics and not deaths
    assert evaluated(tmp_path / "out") == evaluated(folder)
    assert_same(tmp_path / "out", folder, ("rl_1",))


def killed(monkeypatch, module, name, after):
    """Ends the round before or after the call of a function: the first call, in the next life the second, ..."""
    real, calls, due = getattr(module, name), 0, 1

    def dying(*arguments):
        nonlocal calls, due
        calls += 1
        is_due = calls == due
        if is_due:
            calls, due = 0, due + 1
        if is_due and not after:
            raise KeyboardInterrupt
        result = real(*arguments)
        if is_due:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(module, name, dying)


@pytest.mark.parametrize(
    ("module", "name", "after", "patience"),
    [
        (trainer, "evaluate", True, None),  # an evaluation is done and in no checkpoint
        (trainer, "keep_best", True, None),  # a checkpoint is half written
        (hub, "tell", False, 1),  # the trainer has evaluated, and the hub does not know
        (hub, "Stepped", False, 1),  # the step is logged and not in the journal
    ],
)
def test_a_killed_round_has_the_same_points(taught, synchronous, tmp_path, monkeypatch, module, name, after, patience):
    folder, metrics = synchronous
    if patience:
        folder = tmp_path / "stopped"
        metrics = of_evaluation(run(taught, folder, patience=patience))
        assert metrics["evaluation/stopped_early"] == 1
    play_in_one_process(monkeypatch, tmp_path / "weights")
    killed(monkeypatch, module, name, after)
    lives = 0
    while True:
        try:
            assert of_evaluation(run(taught, tmp_path / "out", LOOP, patience=patience)) == metrics
            break
        except KeyboardInterrupt:
            lives += 1
    assert lives >= 2
    assert evaluated(tmp_path / "out") == evaluated(folder) and len(curve(tmp_path / "out")) == len(curve(folder))
    assert_same(tmp_path / "out", folder, ("rl_1",))


def run_until(step, taught, folder, weights):
    """The round gets SIGKILL right behind a step, by the journal and not by a clock."""
    wait = hub.Hub._wait

    def waiting(self):
        wait(self)
        if len(self.curve) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        play_in_one_process(patch, weights)
        patch.setattr(hub.Hub, "_wait", waiting)
        assert killed_at(lambda: run(taught, folder / "out", LOOP), folder, moment=-1), step


def test_a_round_that_is_killed_between_steps_has_the_same_points(taught, synchronous, tmp_path, monkeypatch):
    """benchmarks/asynchronous_faults.py has more."""
    folder, metrics = synchronous
    for step in (1, 4, 8):
        run_until(step, taught, tmp_path, tmp_path / f"weights{step}")
    play_in_one_process(monkeypatch, tmp_path / "weights")
    assert of_evaluation(run(taught, tmp_path / "out", LOOP)) == metrics
    assert evaluated(tmp_path / "out") == evaluated(folder)
    assert_same(tmp_path / "out", folder, ("rl_1",))


def test_a_flipped_bit_in_what_a_killed_round_kept_changes_no_result(taught, synchronous, tmp_path, monkeypatch):
    """In a file of each kind, and at three places of the journal.

    The round ends as if nothing had happened, or with a sentence that names the file.
    """
    folder, metrics = synchronous
    state = tmp_path / "state"
    monkeypatch.setenv("RETRACE_STATE", str(state))
    run_until(5, taught, tmp_path, tmp_path / "weights")
    [scratch] = state.glob("scratch/rl_round-*")
    kinds = {(file.parent.name, file.suffix): file for file in sorted(scratch.rglob("*")) if file.is_file()}
    files = [file for file in kinds.values() if file.stat().st_size]
    bits = [bit for file in files for bit in random_bits([file], 3 if file.name == "records" else 1, seed=1)]
    assert {file.name for file in files} > {"records", "trainer.safetensors", "timeline.json"}
    refused = []
    for number, (file, bit) in enumerate(bits):
        again = tmp_path / f"again{number}"
        monkeypatch.setenv("RETRACE_STATE", str(again / "state"))
        shutil.copytree(state, again / "state")
        flip(again / file.relative_to(tmp_path), bit)
        play_in_one_process(monkeypatch, tmp_path / f"weights{number}")
        try:
            found = run(taught, again / "out", LOOP)
        except UserError as error:
            assert str(again) in str(error), file
            refused.append(file.name)
            continue
        assert of_evaluation(found) == metrics, file
        assert evaluated(again / "out") == evaluated(folder), file
        assert_same(again / "out", folder, ("rl_1",))
    assert set(refused) <= {"records"}, "all else can be made again"


def test_patience_ends_the_round_and_its_schedule_replays(taught, tmp_path, monkeypatch):
    """Also when it is killed at its end, with a whole batch waiting, and the trainer repeats the last evaluation."""
    play_in_one_process(monkeypatch, tmp_path / "weights")
    killed(monkeypatch, asynchronous_round, "sum_up", False)
    changes = {**CHANGES, "rl.dynamic_sampling": PARAMS["rl"]["dynamic_sampling"], "rl.proximal": "rollout"}
    changes |= {**LOOP, "rl.loop": ASYNCHRONOUS}
    with pytest.raises(KeyboardInterrupt):
        run(taught, tmp_path / "out", changes, patience=1)
    metrics = run(taught, tmp_path / "out", changes, patience=1)
    points = {step: point["evaluation/accuracy"] for step, point in evaluated(tmp_path / "out")}
    steps = metrics["progress/steps"]
    assert metrics["evaluation/stopped_early"] == 1 and steps < 8 and max(points) == steps
    kept = metrics["evaluation/kept_step"]
    assert kept == steps - 2 and points[kept] == max(points.values()) and list(points) == [*range(0, steps + 1, 2)]
    lines = (tmp_path / "out/schedules/rl_1/schedule.jsonl").read_text().splitlines()
    assert len(lines) == steps + 2
    recorded = copied(tmp_path / "out", tmp_path / "kept")
    changes["rl_rounds.rl_1.steps"] = kept
    main(rl_flags(taught, replay_params(tmp_path, changes, recorded), tmp_path / "replayed"))
    assert_same(tmp_path / "replayed", tmp_path / "out", ("rl_1",))
