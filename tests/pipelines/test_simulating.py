"""`retrace simulate`: replicas compared with a loop over tokens, hand-worked schedules, the command's output."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.simulating import schedules, table
from pipelines.simulating.replica import (
    ClusterSplit,
    DecodeStep,
    ReplicaSizes,
    SimulatedReplica,
    SimulatedTrajectory,
    SimulationResult,
)
from pipelines.simulating.schedules import (
    OURS,
    POLICIES,
    AsynchronousSchedule,
    Steps,
    asynchronous,
    best_split,
    one_step,
    partial,
    simulate_split,
    stream,
    synchronous,
)
from pipelines.simulating.setting import PAPER_WORK, DrawnLengths, LogNormal, Tools, paper_setting, paper_settings
from pipelines.simulating.table import Cell, draw, ratios, sensitivity_lines, sentence, simulate_cells
from stages.foundations.errors import UserError

PROJECT = Path(__file__).resolve().parents[2]
STEP = DecodeStep(fixed=1e-3, read=5e-3, read_token=3e-8, multiply=6e-5)


def sizes(kv=1e9, most=64, prefill=1e-5, admitted=0.95):
    return ReplicaSizes(STEP, prefill, 10, 2.5, kv, admitted * kv, most)


def trajectories(lengths):
    return [SimulatedTrajectory(number, number, length) for number, length in enumerate(lengths)]


@pytest.mark.parametrize("seed", range(30))
def test_any_number_of_steps_takes_what_its_steps_take(seed):
    rng = random.Random(seed)
    sequences, kv, steps = rng.randint(1, 300), rng.randint(0, 400_000), rng.randint(0, 4000)
    slow = 0.0
    for step in range(steps):
        read = STEP.read + STEP.read_token * (kv + step * sequences)
        slow += STEP.fixed + max(read, STEP.multiply * sequences)
    assert STEP.seconds(sequences, kv, steps) == pytest.approx(slow, rel=1e-9)
    within = STEP.steps_within(sequences, kv, slow / 3, steps)
    assert STEP.seconds(sequences, kv, within) <= slow / 3
    assert within == steps or STEP.seconds(sequences, kv, within + 1) > slow / 3


class SlowReplica:
    """The same replica as a loop over tokens."""

    def __init__(self, own):
        self.own, self.time, self.waiting, self.running, self.ends = own, 0.0, [], [], {}

    def run(self, lengths):
        own = self.own
        self.waiting = [[name, length, 0] for name, length in enumerate(lengths)]
        while self.waiting or self.running:
            read = 0.0
            while self.waiting and len(self.running) < own.most_sequences:
                made = self.waiting[0][2]
                if self.running and self.kv() + own.prompt_tokens + made > own.admitted_tokens:
                    break
                self.running.append(self.waiting.pop(0))
                read += own.prefilled_prompt + made
            self.time += read * own.prefill_token
            while len(self.running) > 1 and self.kv() + len(self.running) > own.kv_tokens:
                self.waiting.insert(0, self.running.pop())
            if self.waiting and len(self.running) < own.most_sequences and self.room():
                continue
            count = len(self.running)
            read = own.step.read + own.step.read_token * self.kv()
            self.time += own.step.fixed + max(read, own.step.multiply * count)
            for one in self.running:
                one[2] += 1
            for one in [one for one in self.running if one[1] == one[2]]:
                self.running.remove(one)
                self.ends[one[0]] = self.time
        return self.ends

    def kv(self):
        return sum(self.own.prompt_tokens + one[2] for one in self.running)

    def room(self):
        return self.kv() + self.own.prompt_tokens + self.waiting[0][2] <= self.own.admitted_tokens


@pytest.mark.parametrize(
    ("kv", "most"), [(1e9, 64), (1e9, 5), (1500, 64), (900, 7)], ids=["room", "few", "full", "fuller"]
)
@pytest.mark.parametrize("seed", range(5))
def test_a_replica_ends_its_work_when_the_slow_one_does(kv, most, seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 300) for _ in range(40)]
    own = sizes(kv, most)
    replica = SimulatedReplica(0, own)
    replica.submit(trajectories(lengths))
    # Polled now and then: a cut between two tokens must not change anything.
    fast = [one for look in range(1, 4000) for one in replica.run_until(0.05 * look)]
    slow = SlowReplica(own).run(lengths)
    assert replica.trajectories == 0 and len(fast) == len(lengths)
    for time, trajectory in fast:
        assert time == pytest.approx(slow[trajectory.number], rel=1e-6)
    assert replica.kv == 0 and 0 < replica.kv_seconds <= replica.time


def test_the_cache_never_holds_more_than_it_can():
    replica = SimulatedReplica(0, sizes(kv=2000))
    replica.submit(trajectories([400] * 30))
    for look in range(1, 2000):
        replica.run_until(0.02 * look)
        assert replica.kv <= 2000
    assert replica.trajectories == 0


def test_a_withdrawn_trajectory_goes_on_elsewhere_with_its_tokens():
    one, other = SimulatedReplica(0, sizes()), SimulatedReplica(1, sizes())
    one.version = other.version = 3
    one.submit(trajectories([50, 200]))
    one.run_until(0.2)
    gone = one.withdraw()
    assert one.trajectories == 0 and one.kv == 0
    assert all(0 < trajectory.made <= trajectory.length for trajectory in gone)
    made = sum(trajectory.made for trajectory in gone)
    other.submit(gone)
    other.run_until(float("inf"))
    # No token is sampled twice: both together have the tokens of the responses.
    assert len(gone) == 2 and one.tokens == made and one.tokens + other.tokens == 250
    assert {trajectory.version for trajectory in gone} == {3}


def with_calls(lengths, calls):
    made = trajectories(lengths)
    for one, own in zip(made, calls, strict=True):
        one.calls = tuple(own)
    return made


def in_whole_steps(lengths, calls):
    """Ends of responses with tools, a loop over steps of 1 s: a row that comes back during a step joins after it."""
    made, back, ends, time = [0] * len(lengths), [0.0] * len(lengths), {}, 0.0
    left = [list(own) for own in calls]
    while len(ends) < len(lengths):
        rows = [row for row in range(len(lengths)) if row not in ends and back[row] <= time]
        if not rows:
            time = min(back[row] for row in range(len(lengths)) if row not in ends)
            continue
        time += 1.0
        for row in rows:
            made[row] += 1
            if left[row] and made[row] == left[row][0][0]:
                back[row] = time + left[row].pop(0)[1]
            elif made[row] == lengths[row]:
                ends[row] = time
    return ends


@pytest.mark.parametrize("seed", range(5))
def test_a_row_that_waits_for_a_tool_holds_up_nobody(seed):
    rng = random.Random(seed)
    lengths = [rng.randint(2, 60) for _ in range(12)]
    calls = [
        [(end, rng.choice([0.25, 3.0, 40.5])) for end in sorted(rng.sample(range(1, length), min(2, length - 1)))]
        for length in lengths
    ]
    replica = SimulatedReplica(0, machine().sizes)
    replica.submit(with_calls(lengths, calls))
    # Polled between two tokens, which must change nothing.
    ended = [one for look in range(1, 900) for one in replica.run_until(0.37 * look)]
    assert replica.trajectories == 0 and replica.kv == 0 and replica.tokens == sum(lengths)
    assert {one.number: time for time, one in ended} == pytest.approx(in_whole_steps(lengths, calls))


def test_a_row_that_waits_is_withdrawn_with_its_wait_and_read_again_only_elsewhere():
    sizes = replace(machine().sizes, prefill_token=0.5)
    stays = SimulatedReplica(2, sizes)
    stays.submit(with_calls([10], [[(4, 6.0)]]))
    assert [time for time, _ in stays.run_until(float("inf"))] == [16.0]
    one, other = SimulatedReplica(0, sizes), SimulatedReplica(1, sizes)
    one.submit(with_calls([10], [[(4, 6.0)]]))
    assert one.run_until(5.0) == [] and (one.trajectories, one.kv, one.time) == (1, 0, 4.0)
    other.submit(one.withdraw())
    assert one.trajectories == 0 and other.trajectories == 1
    # Back at 10 s; 4 tokens are read in 2 s, 6 are left.
    ((time, ended),) = other.run_until(float("inf"))
    assert (time, ended.length, other.tokens, other.busy_seconds) == (18.0, 10, 6, 6.0)


def test_calls_are_those_of_the_group_and_their_seconds_are_log_normal():
    tools = Tools(turns=4, seconds=2.0, tail=50.0)
    lengths = [2000] * 3000
    calls = tools.calls(7, lengths)
    assert calls == tools.calls(7, lengths) and calls != tools.calls(8, lengths)
    seconds = sorted(seconds for own in calls for _, seconds in own)
    assert seconds[len(seconds) // 2] == pytest.approx(2.0, rel=0.1)
    assert seconds[len(seconds) * 99 // 100] == pytest.approx(100.0, rel=0.2)
    turns = sorted(1 + len(own) for own in calls)
    assert turns[len(turns) // 2] == 4 and turns[0] >= 1
    assert all(0 < end < 2000 for own in calls for end, _ in own)
    assert all(own == tuple(sorted(set(own))) for own in calls), "turns end one after the other"
    assert tools.calls(0, [1, 1]) == [(), ()], "a single token has no room for a call"


def test_slow_tools_hold_up_a_batch_more_than_replicas_that_do_not_wait():
    setting = small(gpus=16, repack_seconds=0.5)
    lengths = DrawnLengths(setting.work.lengths, 4, 0)

    def seconds(policy, tools):
        own = replace(setting, work=replace(setting.work, tools=tools))
        found = simulate_split(policy, own, lengths, 8, STEPS)
        assert found.issued == found.finished + found.in_flight
        return found.seconds_per_step

    gains = [
        seconds("synchronous", tools) / seconds("asynchronous_repack", tools)
        for tools in (None, Tools(4, 0.5, 4.0), Tools(4, 0.5, 40.0))
    ]
    assert gains[0] < gains[1] < gains[2]


INFINITE = float("inf")


def machine(replicas=1, groups=2, size=2, **changed):
    """One second per token and step, whatever the batch; an update takes 1 s and 1 s for each ten tokens."""
    sizes = ReplicaSizes(DecodeStep(1.0, 0.0, 0.0, 0.0), 0.0, 0, 0.0, INFINITE, INFINITE, 1000)
    given = {
        "sizes": sizes,
        "replicas": replicas,
        "rollout_gpus": replicas,
        "groups": groups,
        "group_size": size,
        "update_seconds": lambda tokens: 1 + tokens / 10,
        "minibatches": 2,
        "switch_seconds": 3.0,
        "collective_seconds": 4.0,
        "push_seconds": 0.5,
        "broadcast_seconds": 2.0,
        "pull_seconds": 1.0,
        "batch_bound": 100,
        "repack_seconds": 5.0,
    }
    return ClusterSplit(**given | changed)


class Repeating(list):
    """Lengths of groups; after the last the first follows again."""

    def __getitem__(self, group):
        return super().__getitem__(group % len(self))


GROUPS = Repeating([[10, 20], [30, 40]])


def test_batches_by_hand():
    # Generation 40 s. Training: 100 tokens in two updates, 2 + 10 = 12 s.
    found = synchronous(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 12 + 3)
    assert found.generating_share == pytest.approx(40 / 55) and found.staleness == {0: 12}
    found = one_step(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(max(40, 12) + 4)
    # Training ends at 12 s: 10 ends with the newest weights, the three others when they are one step old.
    assert found.staleness == {0: 3, 1: 9} and found.consumed == {1: 12}
    # The groups end at 20 s with 30 tokens and at 40 s with 70. The first alone has less than half of the tokens, so
    # there is one mini-batch of all at 40 s, 1 + 10 s.
    found = stream(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 1 + 10 + 4)
    # [20, 30] ends at 30 s with 50 tokens, [10, 40] at 40 s with 50: updates at 30-36 s and 40-46 s.
    found = stream(machine(), Repeating([[20, 30], [10, 40]]), steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 1 + 5 + 4)


def test_one_replica_that_never_waits_by_hand():
    # A cycle: pull 1 s, 40 s. Training takes 12.5 s at the same time. Responses of version v are trained on as step
    # v + 1. At the end of their cycle, the previous step has long been published (12.5 + 2 s after the cycle's start).
    found = asynchronous(machine(), GROUPS, 3, 5, AsynchronousSchedule(False))
    assert found.seconds_per_step == pytest.approx(41)
    assert found.consumed == {1: 20}
    # When [10] ends, training of the previous batch still runs; the others end after it.
    assert found.staleness == {0: 5, 1: 15}
    assert found.idle_share == pytest.approx(1 / 41)


def small(model="7B", gpus=8, **constants):
    setting = paper_setting(model, gpus)
    lengths = LogNormal(80, 1.0, 4, 800)
    work = replace(PAPER_WORK, groups=24, group_size=4, lengths=lengths)
    return replace(setting, work=work).with_constants(**constants)


STEPS = Steps(warm_up=3, measured=12, batches=4)


def test_repack_frees_replicas():
    # The longest response takes seconds and the others a tenth of it, so polling twice a second makes a difference.
    setting = small(gpus=32, repack_seconds=0.5)
    lengths = DrawnLengths(setting.work.lengths, 4, 0)
    without, packed = (
        asynchronous(setting.machine(16), lengths, 5, 20, AsynchronousSchedule(is_repacked))
        for is_repacked in (False, True)
    )
    assert packed.tokens_per_second > 1.25 * without.tokens_per_second
    assert packed.seconds_per_step < without.seconds_per_step and packed.kv_used > without.kv_used


def test_repack_looks_at_intervals_and_when_new_weights_arrive():
    looked, published = [], []

    class Watched(schedules._AsynchronousLoop):
        def _repack(self, time):
            looked.append(time)
            super()._repack(time)

        def _publish(self, time, version):
            published.append(time)
            super()._publish(time, version)

    # Training takes 2 s at least, so a version is known to come several checks before it does.
    setting = small(gpus=32, repack_seconds=0.5)
    lengths = DrawnLengths(setting.work.lengths, 4, 0)
    Watched(setting.machine(16), lengths, AsynchronousSchedule(True)).run(0, 12)
    assert len(published) >= 10 and set(published) <= set(looked)
    assert looked == sorted(set(looked)) and max(b - a for a, b in pairwise([0.0, *looked])) <= 0.5 + 1e-9
    assert len(looked) > len(published)


@pytest.mark.parametrize("policy", [*POLICIES, OURS])
@pytest.mark.parametrize("seed", range(3))
def test_issued_is_finished_and_in_flight(policy, seed):
    setting = small(most_sequences=16)
    for replicas in (1, 3, 6):
        lengths = DrawnLengths(setting.work.lengths, 4, seed)
        found = simulate_split(policy, setting, lengths, replicas, STEPS)
        assert found.issued == found.finished + found.in_flight
        steps = STEPS.measured if policy in ("partial", "asynchronous", "asynchronous_repack", "ours") else 4
        assert sum(found.consumed.values()) == steps * setting.work.trajectories
        assert 0 < found.kv_used < 1 and 0 <= found.idle_share < 1


@pytest.mark.parametrize("window", [0, 1, 3])
def test_staleness_stays_within_the_window(window):
    setting = small(window=window)
    for policy in ("asynchronous", "asynchronous_repack", "ours"):
        found = simulate_split(policy, setting, DrawnLengths(setting.work.lengths, 4, 1), 5, STEPS)
        assert found.consumed_max <= window
    found = partial(setting.machine(5), DrawnLengths(setting.work.lengths, 4, 1), 3, 12, eta=window)
    assert found.consumed_max <= window


def test_the_best_split_is_the_best():
    setting = small(gpus=12)
    lengths = DrawnLengths(setting.work.lengths, 4, 0)
    for policy in ("one_step", "asynchronous_repack"):
        seconds = {
            replicas: simulate_split(policy, setting, lengths, replicas, STEPS).seconds_per_step
            for replicas in range(1, 12)
        }
        best, result = best_split(policy, setting, lengths, STEPS)
        assert seconds[best] == result.seconds_per_step <= 1.03 * min(seconds.values())
    with pytest.raises(UserError, match="one_step trains beside its replicas: 1 GPUs"):
        best_split("one_step", small(gpus=1), lengths, STEPS)


@pytest.mark.parametrize("policy", ["asynchronous_repack", OURS])
def test_the_best_split_is_the_best_of_whole_runs(policy):
    # The longest response takes more steps than the window. So replicas stop once in about ten steps, and a run that is
    # shorter than such a cycle ranks the splits wrongly.
    setting = small(gpus=24, window=8, repack_seconds=0.5, minibatch_seconds=0.05)
    lengths = replace(setting.work.lengths, longest=2000)
    setting = replace(setting, work=replace(setting.work, lengths=lengths))
    drawn = DrawnLengths(lengths, 4, 0)
    seconds = [simulate_split(policy, setting, drawn, replicas, Steps()).seconds_per_step for replicas in range(1, 24)]
    (cell,) = simulate_cells([setting], [policy], [0], Steps())
    assert cell.seconds_per_step <= 1.03 * min(seconds)


def test_the_same_seed_gives_the_same_cells_on_any_number_of_processes():
    settings = [small(gpus=4), small(gpus=6)]
    policies = ("synchronous", "partial", "asynchronous_repack")
    first = [cell.as_dict() for cell in simulate_cells(settings, policies, [3], STEPS, jobs=1)]
    assert first == [cell.as_dict() for cell in simulate_cells(settings, policies, [3], STEPS, jobs=2)]
    assert first != [cell.as_dict() for cell in simulate_cells(settings, policies, [4], STEPS, jobs=1)]


def test_the_paper_by_hand():
    setting = paper_setting("7B", 64)
    # KV: 80e9 x 0.9 - 15.2e9 over 2 x 28 x 4 x 128 x 2 = 57,344 bytes per token.
    assert setting.kv_tokens == pytest.approx(56.8e9 / 57344)
    # Products take longer than reading the weights from (15.2e9 / 2.68e12) / (15.2e9 / 593.4e12) sequences on.
    assert setting.machine(24).batch_bound == 221
    step = setting.machine(24).sizes.step
    assert step.seconds(100, 0, 1) == pytest.approx(15.2e9 / 2.68e12 + 2e-3)
    # Four updates of 8 P tokens at 40% of 989 TFLOP/s, with 0.5 s and 2 x 15.2e9 / 8 / 40e9 s each.
    seconds = setting.machine(24).training_seconds(1e6)
    assert seconds == pytest.approx(8 * 7.6e9 * 1e6 / (40 * 395.6e12) + 4 * (0.5 + 0.095))
    # Tensor parallel adds two all-reduces a layer.
    large = paper_setting("72B", 64)
    built = large.machine(3)
    assert built.sizes.step.fixed == pytest.approx(2e-3 + 160 * 12e-6)
    assert (built.rollout_gpus, built.pull_seconds) == (24, pytest.approx(145.4e9 / 8 / 50e9))
    assert len(paper_settings()) == 15


def test_lengths_are_those_of_the_paper():
    lengths = DrawnLengths(PAPER_WORK.lengths, 16, 0)
    drawn = sorted(length for group in range(3000) for length in lengths[group])
    assert drawn[len(drawn) // 2] == pytest.approx(1640, rel=0.05)
    assert drawn[int(0.985 * len(drawn))] < 16384 == drawn[-1]
    spread = LogNormal.of_mean(200, 0.99, 1000)
    rng = random.Random(0)
    drawn = [length for _ in range(5000) for length in spread.group(rng, 8)]
    assert sum(drawn) / len(drawn) == pytest.approx(200, rel=0.03) and max(drawn) == 1000


KEYS = ["model", "gpus", "policy", "seconds_per_step", "rollout_gpus", "staleness_mean", "staleness_max", "kv_used"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def cell(setting, policy, seconds):
    outcome = SimulationResult(seconds, 8, {0: 9, 2: 1}, {1: 10}, 0.5, 0.1, 1e3, None, 10, 10, 0)
    return Cell(setting, policy, (outcome,))


def test_a_line_of_json_for_each_cell_and_the_picture_in_a_file(tmp_path):
    arguments = ["laptop", "--mean-tokens", 30, "--gpus", 3, "--steps", 1, "--jobs", 1]
    arguments += ["--policies", "synchronous,one_step", "--json", "--out", tmp_path / "plot.svg"]
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(line)[:8] for line in lines] == [KEYS, KEYS]
    assert [(line["policy"], line["gpus"], line["model"]) for line in lines] == [
        ("synchronous", 3, "random Llama"),
        ("one_step", 3, "random Llama"),
    ]
    assert lines[0]["rollout_gpus"] == 3 > lines[1]["rollout_gpus"] >= 1
    assert lines[0]["staleness_max"] == 0 and 0 < lines[1]["kv_used"] < 1
    assert done.stdout == invoke(*arguments).stdout
    assert ElementTree.fromstring((tmp_path / "plot.svg").read_text()).tag.endswith("svg")


def test_it_runs_without_torch_and_ray():
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "ray", "vllm", "transformers", "deepspeed"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from pipelines.cli import app
app(["simulate", *sys.argv[1:], "--steps", "1", "--jobs", "1", "--policies", "synchronous", "--json"])
"""
    for arguments in (["--paper", "--model", "7B", "--gpus", "256"], ["laptop", "--mean-tokens", "30"]):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["policy"] == "synchronous"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--paper", "--gpus", 0], "0 GPUs cannot be simulated: give --gpus 1 or more"),
        (["--paper", "--model", "8B"], "no model '8B' in the paper: there are 7B, 32B, 72B"),
        (["--paper", "--model", "72B", "--gpus", 4], "a replica of 72B takes 8 GPUs (tensor parallel) and there are 4"),
        (["--paper", "--policies", "laminar"], "no policy 'laminar': there are synchronous, "),
        (["--paper", "laptop"], "--paper has the sizes of the paper: leave laptop out, or the option"),
        (["--paper", "--out", "plot.png"], "--out plot.png: give a name that ends in .svg"),
        (["laptop"], "no lengths of responses are known: run the recipe first"),
        (["laptop", "--data", "nowhere"], "--data nowhere is no folder"),
        (["laptop", "--mean-tokens", 500], "--mean-tokens 500 is more than rl.max_response_tokens, 80"),
        (["laptop", "--mean-tokens", 30, "--device", "cpu"], "--device cpu: the simulator knows GPUs: A100, "),
        (["laptop", "--mean-tokens", 30, "--device", "TPU"], "no GPU 'TPU' in the table"),
        (["laptop", "--mean-tokens", 30, "--model", "GPT-9"], "the sizes of 'GPT-9' are not known here"),
        (["laptop", "--mean-tokens", 30, "--gpus", 1], "one_step trains beside its replicas"),
        (["laptop", "--mean-tokens", 30, "--model", "Qwen2.5-32B", "--device", "L40S"], "Qwen2.5-32B leaves room"),
        (["nosuch"], "no recipe 'nosuch': there are"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, told):
    done = invoke(*arguments, "--jobs", 1)
    assert done.exit_code == 2
    assert done.output.startswith(f"error: {told}") and done.output.count("\n") == 1


def test_a_recipe_takes_the_lengths_of_its_rollouts(tmp_path):
    (tmp_path / "rollouts").mkdir()
    rows = [(step, f"p{problem}", 10 + problem) for step in range(2) for problem in range(6) for _ in range(16)]
    columns = dict(zip(("step", "problem_id", "response_tokens"), zip(*rows, strict=True), strict=True))
    for name in ("rl_1", "rl_2", "rl_3"):
        parquet.write_table(pyarrow.table(columns), tmp_path / "rollouts" / f"{name}.parquet")
    done = invoke("laptop", "--data", tmp_path, "--gpus", 3, "--steps", 1, "--jobs", 1)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("warning: random Llama is too small for this simulator: reading its 690,176 w")
    assert done.stderr.count("\n") == 1
    first, *rest = done.stdout.splitlines()
    assert first.startswith("laptop on 3 x H100 would ") and first.endswith(".")
    assert any(line.startswith("  responses: those of 12 groups in ") for line in rest)
    assert [line.split()[0] for line in rest[2 : 2 + len(POLICIES)]] == list(POLICIES)


def test_ratios_by_hand():
    settings = paper_settings()
    seconds = {"synchronous": 4.0, "one_step": 3.0, "stream": 3.0, "partial": 2.0, "asynchronous_repack": 1.0}
    cells = [cell(one, policy, value) for one in settings for policy, value in seconds.items()]
    cells[0] = cell(settings[0], "synchronous", 7.0)  # the smallest setting
    found = ratios(cells)
    assert found["mean over synchronous"] == pytest.approx((14 * 4 + 7) / 15)
    assert found["largest over synchronous"] == 7 and found["mean over partial"] == 2
    assert found["largest scale, over all"] == pytest.approx((4 + 3 + 3 + 2) / 4)
    assert cells[1].as_dict()["staleness_mean"] == pytest.approx(0.2)


def test_the_sentence_says_what_is_gained():
    setting = paper_settings()[0]
    slow, fast, near, none = (cell(setting, "abcd"[n], seconds) for n, seconds in enumerate((2.0, 1.0, 1.001, 3.0)))
    assert sentence([slow, none], "mine").startswith("mine on 16 x H800 would gain nothing: 2 s a step with a")
    assert "2.00 times as fast with c as with a" in sentence([slow, near, fast], "mine"), "of two as fast the newer"
    assert "1 s a step instead of 2 s. 8 GPUs would generate" in sentence([slow, fast], "mine")
    single = replace(fast, outcomes=(replace(fast.outcomes[0], rollout_gpus=1),))
    assert "1 GPU would generate" in sentence([slow, single], "mine")


def test_small_models_are_doubted_and_those_of_the_paper_are_not():
    settings = paper_settings()
    assert not any(one.doubt for one in settings)
    small = replace(settings[0], model=replace(settings[0].model, parameters=2e9))
    assert "reading its 2,000,000,000 weights takes 1.5 ms of a decode step" in small.doubt
    assert "fixed cost is 2 ms. Trust figures for models from about 2.7B" in small.doubt


def test_the_picture_escapes_and_repeats():
    cells = [cell(one, policy, 1.0 + place) for one in paper_settings() for place, policy in enumerate(POLICIES)]
    picture = draw(cells, "a < b")
    assert picture == draw(cells, "a < b")
    tree = ElementTree.fromstring(picture)
    labels = [chart.get("aria-label") for chart in tree.findall("{http://www.w3.org/2000/svg}svg")]
    assert len(labels) == 3 and f"{POLICIES[0]} 1 → 1" in labels[0]
    assert all(policy in label for label in labels for policy in POLICIES)


def test_each_change_has_the_ratios_of_its_own_cells(monkeypatch):
    changes = {"as it stands": {}, "eta 1": {"eta": 1}}
    monkeypatch.setattr(table, "SETTINGS", (("72B", 64),))
    monkeypatch.setattr(table, "CHANGES", changes)
    monkeypatch.setattr(table, "POLICIES", (two := ("partial", "asynchronous_repack")))
    steps = Steps(warm_up=1, measured=1, batches=1)
    lines = sensitivity_lines((0,), steps, 1, as_json=True)
    for line, (name, changed) in zip(lines, changes.items(), strict=True):
        own = paper_setting("72B", 64).with_constants(**changed)
        assert json.loads(line) == {"change": name, **ratios(simulate_cells([own], two, (0,), steps))}
    assert lines[0].split(",", 1)[1] != lines[1].split(",", 1)[1]
