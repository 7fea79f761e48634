"""What every stage of a recipe has to do on its device: tokens through the trainer, tokens drawn, FLOPs.

Products are counted, two FLOPs a multiplication and addition: 2 a weight and token forward, twice that backward
(Kaplan et al., arXiv 2001.08361, section 2.1), attention at its causal half. Stages that read and write tables do
next to nothing of this and are left out of the work, not out of the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipelines.planning.lengths import Lengths, ResponseLengths
from pipelines.planning.shapes import Shape

HEAD_PRODUCTS = 4
"""The head's logits are computed, and computed again while going backward, where their two gradients are made."""


@dataclass(frozen=True)
class Training:
    """Passes through the trainer."""

    tokens: float
    """Prompt and response tokens that go forward and backward."""
    response_tokens: float
    """Those of `tokens` that meet the head."""
    forward_tokens: float
    """Tokens that go forward only: validation, proximal and reference log-probs."""
    context: float
    """Mean length that a token attends over, times two: mean square of the sequences over their mean."""
    longest: int
    updates: int
    kind: str
    """Of the optimizer."""

    def flops(self, shape: Shape, is_checkpointed: bool) -> float:
        """Forward and backward; with gradient checkpointing the layers go forward once more."""
        layers = layer_flops(shape, self.context)
        head = 2 * shape.vocabulary * shape.hidden
        forward_head = head * self.response_tokens / max(1.0, self.tokens)
        return (
            self.tokens * layers * (4 if is_checkpointed else 3)
            + self.response_tokens * head * HEAD_PRODUCTS
            + self.forward_tokens * (layers + forward_head)
        )


@dataclass(frozen=True)
class Sampling:
    """Responses drawn; each call waits for its longest response before the next one starts."""

    calls: float
    prompts: float
    """In one call."""
    samples: int
    """Responses to each prompt, which is read once for all of them."""
    prompt_tokens: float
    lengths: ResponseLengths

    @property
    def responses(self) -> float:
        return self.calls * self.prompts * self.samples

    @property
    def tokens(self) -> float:
        return self.responses * self.lengths.mean

    @property
    def context(self) -> float:
        """Mean number of tokens that a drawn token attends to."""
        return self.prompt_tokens + self.lengths.mean_square / (2 * self.lengths.mean)

    def flops(self, shape: Shape) -> float:
        read = self.calls * self.prompts * self.prompt_tokens * layer_flops(shape, self.prompt_tokens)
        return read + self.tokens * token_flops(shape, self.context)


@dataclass(frozen=True)
class StageWork:
    """One stage of the graph, by its name there."""

    name: str
    training: Training | None
    sampling: tuple[Sampling, ...]


def layer_flops(shape: Shape, context: float) -> float:
    """One token forward through all layers; it attends over half of `context`."""
    return shape.layers * (2 * shape.layer_matrices + 2 * shape.heads * shape.head_size * context)


def token_flops(shape: Shape, attended: float) -> float:
    """One drawn token: all layers over `attended` tokens, and the head."""
    return layer_flops(shape, 2 * attended) + 2 * shape.vocabulary * shape.hidden


def work_of(sections: dict[str, Any], lengths: Lengths, problems: dict[str, float | None]) -> list[StageWork]:
    """Every stage in graph order. `problems` gives the number of `benchmark` problems; None where nobody knows."""
    respond, grade_rows = sections["respond"], problems["benchmark"]
    stages = [
        "base",
        *(f"collect@{name}" for name in sections["sources"]),
        "collect_web",
        "curate",
        "extract_web",
    ]
    work = [StageWork(name, None, ()) for name in stages]
    work.append(StageWork("filter_web", None, _agreement(sections["filter_web"].agreement, lengths)))
    work.append(StageWork("demonstrate", None, _rejection(sections["demonstrate"].sources, lengths)))
    work.append(StageWork("sft", _fine_tuning(sections, lengths), ()))
    for name, this_round in sections["rl_rounds"].items():
        work.append(_round(name, this_round, sections["rl"], lengths))
    for policy in sections["policies"]:
        stage = f"respond@{policy}"
        work.append(StageWork(stage, None, _responses(stage, respond, grade_rows, lengths)))
    work += [StageWork(f"grade@{policy}", None, ()) for policy in sections["policies"]]
    return [*work, StageWork("report", None, ())]


def _agreement(agreement: Any, lengths: Lengths) -> tuple[Sampling, ...]:
    if agreement.kind == "none" or agreement.max_candidates is None:
        return ()
    drawn = ResponseLengths(
        lengths.response_share * agreement.max_response_tokens, agreement.max_response_tokens
    )
    return (Sampling(1, agreement.max_candidates, agreement.samples, lengths.prompt, drawn),)


def _rejection(sources: list[Any], lengths: Lengths) -> tuple[Sampling, ...]:
    return tuple(
        Sampling(
            1,
            source.max_problems,
            source.samples,
            lengths.prompt,
            ResponseLengths(lengths.response_share * source.max_response_tokens, source.max_response_tokens),
        )
        for source in sources
        if source.kind == "rejection_sampled" and source.max_problems
    )


def _fine_tuning(sections: dict[str, Any], lengths: Lengths) -> Training:
    sft, demonstrate = sections["sft"], sections["demonstrate"]
    most = min(demonstrate.max_response_tokens, sft.max_sequence_tokens)
    sequence = lengths.demonstration or min(
        lengths.prompt + lengths.response_share * most, float(sft.max_sequence_tokens)
    )
    tokens = sft.steps * sft.batch_demonstrations * sequence
    validations = -(-sft.steps // sft.validate_every_steps)
    return Training(
        tokens=tokens,
        response_tokens=tokens * max(0.0, 1 - lengths.prompt / sequence),
        forward_tokens=validations * demonstrate.validation_rows * sequence,
        context=sequence,
        longest=sft.max_sequence_tokens,
        updates=sft.steps,
        kind=sft.optimizer.kind,
    )


def _round(name: str, this_round: Any, rl: Any, lengths: Lengths) -> StageWork:
    stage = f"rl_round@{name}"
    drawn = lengths.of(stage, rl.max_response_tokens)
    is_dynamic = rl.dynamic_sampling.kind == "dynamic"
    factor = lengths.drawn_of(stage) if is_dynamic else 1.0
    calls_a_step = min(max(1.0, factor), rl.dynamic_sampling.max_draws) if is_dynamic else 1.0
    prompts = factor * rl.problems_per_step / calls_a_step
    sampling = [Sampling(this_round.steps * calls_a_step, prompts, rl.group_size, lengths.prompt, drawn)]
    responses = this_round.steps * rl.problems_per_step * rl.group_size
    sequence = lengths.prompt + drawn.mean
    square = lengths.prompt**2 + 2 * lengths.prompt * drawn.mean + drawn.mean_square
    passes = (rl.proximal == "recompute") + (rl.reference_kl.kind != "none")
    training = Training(
        tokens=responses * sequence,
        response_tokens=responses * drawn.mean,
        forward_tokens=passes * responses * sequence,
        context=square / sequence,
        longest=int(lengths.prompt) + rl.max_response_tokens,
        updates=this_round.steps * rl.minibatches,
        kind=rl.optimizer.kind,
    )
    return StageWork(stage, training, tuple(sampling))


def _responses(stage: str, respond: Any, problems: float | None, lengths: Lengths) -> tuple[Sampling, ...]:
    if problems is None:
        return ()
    drawn = lengths.of(stage, respond.max_response_tokens)
    at_once = min(respond.problems_at_once, problems)
    sampling = [Sampling(problems / at_once, at_once, respond.samples, lengths.prompt, drawn)]
    if respond.is_greedy_included:
        sampling.append(Sampling(problems / at_once, at_once, 1, lengths.prompt, drawn))
    return tuple(sampling)
