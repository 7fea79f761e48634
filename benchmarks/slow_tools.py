"""Times multi-turn sampling with slow tools, with 1, 4 and 16 workers, against tools that take no time.

The torch sampler draws from a random policy, and an environment in real workers sleeps before each answer, log-normally
(median 50 ms, 99th percentile 1 s). Two orders: `waves`, as the synchronous loop draws, and `as they come`, as the
asynchronous one does. Every arm has the same trajectories, so the same turns and the same seconds of tools.

Each time is shown beside three floors, which no sampler can beat. They are the seconds of all tools divided by the
workers, those of the busiest worker, and those of the response that waits longest. They hold because a worker sleeps
with its tool, and the seed decides which worker gets an episode. The target is 1.2 times the time without tools, at 16
workers. Only work whose floors are below that can reach it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.slow_environment import answer, seconds_of_tool
from stages.engines.environments.frames import make_frame
from stages.engines.environments.pool import EnvironmentPool
from stages.engines.environments.turn_sampler import TurnSampler
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import Sample, SamplingSettings, Trajectory
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.foundations.params import EnvironmentWorkers, PlainPrompt, TaggedCalls, TextFrame, ToolsEnvironment
from stages.foundations.seeds import derive_seed
from tests.fakes.tiny_policy import VOCABULARY_TOKENS, byte_tokenizer, tiny_model

MOST_TURNS = 6


def in_waves(sampler: TurnSampler, trajectories: list[Trajectory], settings: SamplingSettings) -> dict[int, Sample]:
    return dict(sampler.stream(trajectories, settings))


def as_they_come(sampler: TurnSampler, trajectories: list[Trajectory], settings: SamplingSettings) -> dict[int, Sample]:
    decoding, ended = sampler.open(settings), {}
    decoding.admit(dict(enumerate(trajectories)))
    while not decoding.is_idle:
        ended |= decoding.step()
    decoding.close()
    return ended


ORDERS: dict[str, Callable[..., dict[int, Sample]]] = {"waves": in_waves, "as they come": as_they_come}


@dataclass(frozen=True)
class Work:
    """The trajectories of every arm, and the policy that generates them."""

    policy: TorchSampler
    end_tokens: list[int]
    problems: int
    group_size: int
    settings: SamplingSettings

    def trajectories(self, is_slow: bool) -> list[Trajectory]:
        tokenizer = byte_tokenizer()
        return [
            Trajectory(
                tokenizer.encode(f"problem {number}:"),
                derive_seed("slow tools", number, sample),
                problem={"problem_id": str(number), "problem": "", "answer": "", "is_slow": is_slow},
            )
            for number in range(self.problems)
            for sample in range(self.group_size)
        ]

    def draw(self, order: str, workers: int, is_slow: bool) -> tuple[float, dict[int, Sample]]:
        """Returns seconds and samples; workers are started off the clock."""
        params = ToolsEnvironment(
            kind="tools",  # its code is not run: `answer` makes the environment
            tools={},
            calls=TaggedCalls(kind="tagged"),
            frame=TextFrame(kind="text", before="[", after="]"),
            max_turns=MOST_TURNS,
            max_observation_tokens=8,
            workers=EnvironmentWorkers(processes=workers, memory_mib=1024, timeout_seconds=5.0),
        )
        prompt = PlainPrompt(kind="plain", template="{problem}", environment=params)
        frame = make_frame(byte_tokenizer(), prompt, self.end_tokens)
        trajectories = self.trajectories(is_slow)
        with EnvironmentPool(params, answer) as pool:
            sampler = TurnSampler(self.policy, pool, byte_tokenizer(), frame, self.end_tokens)
            # One request for each process, which starts it.
            pool.openings([{"problem_id": f"start {number}", "is_slow": False} for number in range(workers)])
            started = time.perf_counter()
            samples = ORDERS[order](sampler, trajectories, self.settings)
            return time.perf_counter() - started, samples


def make_work(problems: int, group_size: int, turn_tokens: int, hidden: int, layers: int) -> Work:
    """Returns the work with a policy that ends a turn after `turn_tokens` tokens on average."""
    # A random policy draws every token about equally often: so many of them end a turn.
    ends = [0, *range(VOCABULARY_TOKENS - round(VOCABULARY_TOKENS / turn_tokens) + 1, VOCABULARY_TOKENS)]
    rows = problems * group_size
    params = TorchSamplerParams(kind="torch", device="cpu", dtype="float32", threads=1, max_sequences=rows)
    policy = TorchSampler(params, tiny_model(hidden=hidden, layers=layers), ends)
    # 512 positions less the prompt.
    return Work(policy, ends, problems, group_size, SamplingSettings(1.0, 1.0, 0, min(490, 12 * turn_tokens), None))


def floors(samples: dict[int, Sample], trajectories: list[Trajectory], workers: int) -> tuple[float, float, float]:
    """Returns seconds of all tools / workers, of those of the busiest worker, and of those of one response at most."""
    of_worker, waits = [0.0] * workers, []
    for place, one in samples.items():
        seed, turns = trajectories[place].seed, one.episode.turns if one.episode else 0
        # A turn that the limit cut is not answered.
        waits.append(sum(seconds_of_tool(seed, turn + 1) for turn in range(turns - one.is_truncated)))
        of_worker[seed % workers] += waits[-1]  # as `EnvironmentPool.submit`
    return sum(waits) / workers, max(of_worker), max(waits)


def main() -> None:
    """Prints a table: median and range of the seconds, and of their ratio to the same order without tool time."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"problems": 16, "group": 4, "turn-tokens": 48, "hidden": 256, "layers": 6, "repeats": 2}
    for name, default in defaults.items():
        asked.add_argument(f"--{name}", type=int, default=default)
    asked.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    given = asked.parse_args()
    torch.set_num_threads(1)
    work = make_work(given.problems, given.group, given.turn_tokens, given.hidden, given.layers)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {given.repeats} repeats")
    arms = [(order, workers, True) for order in ORDERS for workers in given.workers]
    arms = [(order, max(given.workers), False) for order in ORDERS] + arms
    times: dict[tuple[str, int, bool], list[float]] = {arm: [] for arm in arms}
    first: dict[int, Sample] = {}
    # All arms in turn: what else the machine does meets all alike. First each order without tools warms up: workers are
    # started for every arm, off the clock, so the slow arms need no warm-up.
    for turn in range(given.repeats + 1):
        for arm in arms if turn else arms[: len(ORDERS)]:
            seconds, samples = work.draw(*arm)
            first = first or samples
            differ = sum(samples[place].token_ids != one.token_ids for place, one in first.items())
            if differ:
                print(f"{arm}: {differ} of {len(first)} responses differ from the first arm's")
            if turn:
                times[arm].append(seconds)
    turns = sum(one.episode.turns for one in first.values() if one.episode)
    tokens = sum(len(one.token_ids) for one in first.values())
    print(f"{len(first)} responses, {turns} turns, {tokens} tokens")
    print("order, workers, tools: seconds (least to most) | ratio (least to most) | floors: all, busiest, longest")
    for (order, workers, is_slow), own in times.items():
        base = times[order, max(given.workers), False]
        ratios = [one / two for one, two in zip(own, base, strict=True)]
        least = floors(first, work.trajectories(True), workers) if is_slow else ()
        print(
            f"{order}, {workers}, {'slow' if is_slow else 'none'}: {statistics.median(own):.2f} ({min(own):.2f} to "
            f"{max(own):.2f}) | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | "
            + (", ".join(f"{one:.2f}" for one in least) or "-")
        )


if __name__ == "__main__":
    main()
