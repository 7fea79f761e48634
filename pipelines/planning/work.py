"""The work of each stage with a language model, counted before it runs: tokens trained, responses sampled.

`WORK` and `WITHOUT_WORK` name every stage between them: tests/architecture checks that, so that a new stage cannot be
left out of a plan in silence. Lengths of prompts and responses are assumed, given, or read from an earlier run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from stages.foundations.stage import Sections
from stages.rl_round.methods import AsynchronousLoop
from stages.rl_round.update_methods import Gae


@dataclass(frozen=True)
class Work:
    """Work of one stage with a policy."""

    training: Training | None = None
    sampling: tuple[Sampling, ...] = ()
    taken_for_granted: tuple[str, ...] = ()
    """Sentences on the assumptions of the figures, beyond the lengths."""
    side_by_side: SideBySide | None = None
    """None where sampling and training alternate."""
    not_counted: tuple[str, ...] = ()
    """Work of unknown size, with how to make it known."""


@dataclass(frozen=True)
class Training:
    """Passes through the trainer."""

    tokens: float
    """Prompt and response tokens that go forward and backward."""
    response_tokens: float
    """The part of `tokens` that passes through the head."""
    forward_tokens: float
    """Tokens that only go forward: validation, proximal and reference log-probs."""
    context: float
    """Mean length that a token attends over, times two: mean square of the sequences over their mean."""
    longest: int
    updates: int
    kind: str
    """Of the optimizer."""
    holds_reference: bool = False
    """A second, frozen policy is in memory beside the trained one."""
    critic: str | None = None
    """Kind of the optimizer of a second model of the policy's size, which learns too; None where there is none."""
    adapter: Any = None
    """`AdapterParams` of what is learned in place of the policy's own weights."""


@dataclass(frozen=True)
class Sampling:
    """Sampled responses; each call waits for its longest response before the next one starts."""

    calls: float
    prompts: float
    """In one call."""
    samples: int
    """Responses to each prompt, which is read once for all of them."""
    prompt_tokens: float
    lengths: ResponseLengths
    in_flight: float | None = None
    """Most prompts at once, each starting when another ends; None where each call waits for its longest response."""
    is_by_trainer: bool = False
    """In a stage that samples and trains side by side: the trainer's devices sample it, and do not train meanwhile."""
    observed: float = 0.0
    """Tokens of a response that its environment writes, beside those of `lengths`."""
    read_between: float = 0.0
    """Tokens that a response reads between its turns: observations, and earlier turns where they are not kept."""

    @property
    def read_for_prompt(self) -> float:
        """Tokens that are read, not generated, for one prompt and its samples."""
        return self.prompt_tokens + self.samples * self.read_between

    @property
    def responses(self) -> float:
        return self.calls * self.prompts * self.samples

    @property
    def tokens(self) -> float:
        return self.responses * self.lengths.mean

    @property
    def context(self) -> float:
        """Mean number of tokens that a generated token attends to."""
        # A token sees on average half of its response, and long responses have more tokens: mean square over mean.
        return self.prompt_tokens + self.lengths.mean_square / (2 * self.lengths.mean)


def over_turns(part: Sampling, environment: Any, keeps_prefixes: bool) -> tuple[Sampling, tuple[str, ...]]:
    """Returns the sampling of responses with turns, and the assumptions as sentences; unchanged without an environment.

    `environment` is `prompt.environment`. A sampler that `keeps_prefixes` does not read earlier turns again.
    """
    if environment is None:
        return part, ()
    # Nobody knows the turns before a run: the middle of what the recipe allows.
    turns = (1 + environment.max_turns) / 2
    # The limit of a response counts observations too.
    observed = min((turns - 1) * environment.max_observation_tokens, part.lengths.most - part.lengths.mean)
    read, reading = observed, "keeps earlier turns"
    if not keeps_prefixes:
        # A later turn begins, on average, in the middle of the response.
        read = (turns - 1) * (part.prompt_tokens + (part.lengths.mean + observed) / 2)
        reading = "reads the prompt and earlier turns again for each turn"
    sentence = (
        f"prompt.environment: {turns:g} turns a response, the middle of 1 to {environment.max_turns}; observations of "
        f"{environment.max_observation_tokens} tokens, the largest allowed, up to the limit of a response; "
        f"the sampler {reading}; waiting for the environment is not counted"
    )
    return replace(part, observed=observed, read_between=read), (sentence,)


@dataclass(frozen=True)
class SideBySide:
    """Sampling and training at once, each on separate devices."""

    replicas: int
    """Of the sampler."""
    trainer_ranks: int
    steps: int
    """Batches that pass from sampling to training."""

    def seconds(self, training: float, sampling: float) -> float:
        """The longer of the two, and one step of the other: the first batch is sampled before any training."""
        # The first batch waits only for sampling, and the last one only for training.
        return max(training, sampling) + min(training, sampling) / self.steps


@dataclass(frozen=True)
class Lengths:
    """Assumptions of a plan, with the source of each figure."""

    prompt: float
    response_share: float
    drawn_per_trained: float
    responses: Mapping[str, float] = field(default_factory=dict)
    """Mean response tokens by the stage's address (`rl_round@rl_1`), where they were measured."""
    drawn: Mapping[str, float] = field(default_factory=dict)
    """Groups sampled per group trained on, by address, where they were measured."""
    trained: Mapping[str, float] = field(default_factory=dict)
    """Tokens trained on, prompts included, by address, where they were measured."""
    untrained: Mapping[str, float] = field(default_factory=dict)
    """Policies with random weights -> probability of the end token at each step."""
    benchmark_problems: float | None = None
    """Problems that every policy answers, if the user gives their number."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def of(self, address: str, most: int) -> ResponseLengths:
        """Returns lengths of the responses that a stage samples from the policy of its address, or from any."""
        assumed = self.response_share * most
        chance = self.untrained.get(address.partition("@")[2])
        if chance:
            # Mean of a geometric length, cut off at `most`.
            assumed = (1 - (1 - chance) ** most) / chance
        return ResponseLengths(min(self.responses.get(address, assumed), float(most)), most)

    def drawn_of(self, address: str) -> float:
        return self.drawn.get(address, self.drawn_per_trained)


@dataclass(frozen=True)
class ResponseLengths:
    """Lengths in tokens: exponential, cut off at `most`, with this mean. Many are short and a few reach the limit."""

    mean: float
    most: int

    @cached_property
    def rate(self) -> float:
        """Chance to end per token: (1 - e^(-rate most)) / rate = mean; 0 where every response reaches the limit."""
        if self.mean >= self.most * (1 - 1e-6):
            return 0.0
        # Bisection on a logarithmic scale: the rate may be any power of ten, and the mean falls steadily as it rises.
        low, high = 1e-12, 50.0 / self.mean
        for _ in range(200):
            rate = (low * high) ** 0.5
            low, high = (rate, high) if -math.expm1(-rate * self.most) / rate > self.mean else (low, rate)
        return rate

    def open_share(self, tokens: float) -> float:
        """Share of the responses that are longer than `tokens`."""
        return math.exp(-self.rate * tokens) if tokens < self.most else 0.0

    @cached_property
    def mean_square(self) -> float:
        """Mean of the squared length: twice the integral of t times the open share."""
        width = self.most / STEPS_OF_SURVIVAL
        middles = ((step + 0.5) * width for step in range(STEPS_OF_SURVIVAL))
        return 2 * width * sum(middle * self.open_share(middle) for middle in middles)

    def context_behind(self, prompt: float) -> float:
        """Mean length of a prompt and its response that a token attends over, times two: mean square over mean."""
        # Attention grows with the square of a length, so this is the mean square, not the square of the mean.
        return (prompt**2 + 2 * prompt * self.mean + self.mean_square) / (prompt + self.mean)


STEPS_OF_SURVIVAL = 200


def _demonstrate(sections: Sections, address: str, lengths: Lengths) -> Work:
    """Returns the work of rejection sampling, as far as the number of its problems is known."""

    def drawn(most: int) -> ResponseLengths:
        return ResponseLengths(lengths.response_share * most, most)

    sampled = [source for source in sections["demonstrate"].sources if source.kind == "rejection_sampled"]
    unknown = "rejection sampling of an unknown number of problems (set max_problems of its source)"
    return Work(
        sampling=tuple(
            Sampling(1, source.max_problems, source.samples, lengths.prompt, drawn(source.max_response_tokens))
            for source in sampled
            if source.max_problems
        ),
        not_counted=() if all(source.max_problems for source in sampled) else (unknown,),
    )


def _filter_web(sections: Sections, address: str, lengths: Lengths) -> Work:
    """Responses to each candidate, as far as their number is known."""
    agreement = sections["filter_web"].agreement
    if agreement.kind == "none":
        return Work()
    if agreement.max_candidates is None:
        unknown = "responses to an unknown number of candidates (set filter_web.agreement.max_candidates)"
        return Work(not_counted=(unknown,))
    most = agreement.max_response_tokens
    drawn = ResponseLengths(lengths.response_share * most, most)
    return Work(sampling=(Sampling(1, agreement.max_candidates, agreement.samples, lengths.prompt, drawn),))


def _sft(sections: Sections, address: str, lengths: Lengths) -> Work:
    sft, demonstrate = sections["sft"], sections["demonstrate"]
    sequences, assumed = sft.steps * sft.batch_demonstrations, ()
    if address in lengths.trained:
        sequence = lengths.trained[address] / sequences
        assumed = (f"demonstration: {sequence:.0f} tokens ({lengths.sources['trained']})",)
    else:
        most = min(demonstrate.max_response_tokens, sft.max_sequence_tokens)
        sequence = min(lengths.prompt + lengths.response_share * most, float(sft.max_sequence_tokens))
    tokens = sequences * sequence
    # Rounded up: the last step is validated as well.
    validations = -(-sft.steps // sft.validate_every_steps)
    training = Training(
        tokens=tokens,
        response_tokens=tokens * max(0.0, 1 - lengths.prompt / sequence),
        forward_tokens=validations * demonstrate.validation_rows * sequence,
        context=sequence,
        longest=sft.max_sequence_tokens,
        updates=sft.steps,
        kind=sft.optimizer.kind,
        adapter=sft.adapter,
    )
    return Work(training, taken_for_granted=assumed)


def _rl_round(sections: Sections, address: str, lengths: Lengths) -> Work:
    rl, this_round = sections["rl"], sections["rl_rounds"][address.partition("@")[2]]
    drawn = lengths.of(address, rl.max_response_tokens)
    is_dynamic = rl.dynamic_sampling.kind == "dynamic"
    # Dynamic sampling draws `factor` groups for each one trained on, about a step's size in each call. More calls cost
    # more time: each waits for its longest response.
    factor = lengths.drawn_of(address) if is_dynamic else 1.0
    calls_a_step = min(max(1.0, factor), rl.dynamic_sampling.max_draws) if is_dynamic else 1.0
    prompts = factor * rl.problems_per_step / calls_a_step
    sampling = Sampling(this_round.steps * calls_a_step, prompts, rl.group_size, lengths.prompt, drawn)
    environment, keeps_prefixes = sections["prompt"].environment, sections["sampler"].kind == "vllm"
    sampling, assumed_turns = over_turns(sampling, environment, keeps_prefixes)
    loop, side_by_side = rl.loop, None
    if isinstance(loop, AsynchronousLoop):
        count = sections["sampler"].replicas.count
        side_by_side = SideBySide(count, loop.trainer_ranks, this_round.steps)
        sampling = _drawn_without_end(sampling, rl.problems_per_step, loop)
    evaluations, held_out = [], rl.evaluation
    if held_out:
        calls = 2 + (this_round.steps - 1) // held_out.every_steps
        evaluation = Sampling(calls, held_out.problems, held_out.samples, lengths.prompt, drawn)
        evaluation, _ = over_turns(evaluation, environment, keeps_prefixes)
        evaluations = [replace(evaluation, is_by_trainer=side_by_side is not None)]
    responses = this_round.steps * rl.problems_per_step * rl.group_size
    # Observations are read like a prompt: they pass through the layers and not through the head.
    given = lengths.prompt + sampling.observed
    sequence = given + drawn.mean
    has_reference, has_teacher = rl.reference_kl.kind != "none", this_round.distillation is not None
    training = Training(
        tokens=responses * sequence,
        response_tokens=responses * drawn.mean,
        # Passes without gradient: log-probs of the trainer before the update, of the reference, and of the teacher.
        forward_tokens=((rl.proximal == "recompute") + has_reference + has_teacher) * responses * sequence,
        context=drawn.context_behind(given),
        longest=int(lengths.prompt) + rl.max_response_tokens,
        updates=this_round.steps * rl.minibatches,
        kind=rl.optimizer.kind,
        # With adapters the reference is the trained policy without them, until it is reset.
        holds_reference=has_teacher
        or (has_reference and (rl.adapter is None or rl.reference_kl.reset_every_steps is not None)),
        critic=rl.advantage.critic.optimizer.kind if isinstance(rl.advantage, Gae) else None,
        adapter=rl.adapter,
    )
    source = "measured for each round" if lengths.drawn else lengths.sources["drawn_per_trained"]
    assumed = [*assumed_turns]
    if is_dynamic:
        assumed.append(f"dynamic sampling: {lengths.drawn_per_trained:.1f} groups drawn for one trained on ({source})")
    if side_by_side:
        tails = (
            "a replica waits for the longest response of its share"
            if loop.repack.kind == "none"
            else "repack is assumed to keep the sampling replicas full"
        )
        assumed.append(
            f"rl.loop asynchronous: a round takes the longer of sampling ({count} replica(s)) and training "
            f"({loop.trainer_ranks} rank(s)), in parallel on separate devices; {tails}"
        )
    return Work(training, (sampling, *evaluations), tuple(assumed), side_by_side)


def _drawn_without_end(sampling: Sampling, groups_per_step: int, loop: AsynchronousLoop) -> Sampling:
    """Returns the sampling of a round with continuous samplers: all shares of the replicas, within the window."""
    prompts, taken = sampling.calls * sampling.prompts, groups_per_step * loop.replica_share
    # A free replica gets at most the groups that the window still admits, even if its share is larger.
    if loop.window is not None:
        taken = min(taken, (loop.window + 1) * groups_per_step)
    if loop.repack.kind == "none":
        return replace(sampling, calls=prompts / taken, prompts=taken)
    return replace(sampling, calls=1, prompts=prompts, in_flight=taken)


def _respond(sections: Sections, address: str, lengths: Lengths) -> Work:
    respond = sections["respond"]
    problems = lengths.benchmark_problems or _problems(sections)
    if problems is None:
        return Work(not_counted=("responses to an unknown number of problems (give --benchmark-problems)",))
    drawn = lengths.of(address, respond.max_response_tokens)
    # A piece waits for its longest response, so the number of pieces matters, not only that of responses.
    at_once = min(respond.problems_at_once, problems)
    samples = [respond.samples, *([1] if respond.is_greedy_included else [])]
    parts = [Sampling(problems / at_once, at_once, each, lengths.prompt, drawn) for each in samples]
    environment, keeps_prefixes = sections["prompt"].environment, sections["sampler"].kind == "vllm"
    told = [over_turns(part, environment, keeps_prefixes) for part in parts]
    return Work(sampling=tuple(part for part, _ in told), taken_for_granted=told[0][1])


def _problems(sections: Sections) -> float | None:
    """Returns the number of benchmark problems; None if the sources do not say it."""
    most, total = sections["respond"].max_problems, 0
    for source in sections["sources"].values():
        if source.role == "benchmark":
            # Generated sources have `rows`; sources from files have `max_rows`, `draw` or nothing.
            origin, draw = source.origin, getattr(source.origin, "draw", None)
            known = (getattr(origin, "rows", None), getattr(origin, "max_rows", None), draw and draw.rows, most)
            if all(number is None for number in known):
                return None
            total += min(number for number in known if number is not None)
    return total


WORK: Mapping[str, Callable[[Sections, str, Lengths], Work]] = {
    "demonstrate": _demonstrate,
    "filter_web": _filter_web,
    "sft": _sft,
    "rl_round": _rl_round,
    "respond": _respond,
}
"""Stage -> its work at an address."""
_PICTURES = """
t2i_prompts t2i_base generate image_pool annotate preferences scorer_base reward_model reward_evaluation refl
refl_control t2i_report
"""
_TABLES = "base code collect collect_web curate extract_web grade report teacher"
WITHOUT_WORK = frozenset(f"{_PICTURES} {_TABLES}".split())
"""Stages that train and sample no language model, or whose networks are not planned: those of pictures."""
