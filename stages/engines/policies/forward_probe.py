"""Compares the forward passes of this project with transformers' on the loaded policy, before a stage relies on them.

Training packs sequences, computes logits from hidden states itself, and may replace the attention. The torch sampler
has its own decoder for some families, and pads texts for others. vLLM has its own models. With an architecture that
these do not fully represent, training or sampling would use wrong probabilities without an error. So each is measured,
because no list of architectures could be complete.

The reference is the model's forward pass with plain (`eager`) attention on one sequence at a time. All passes except
vLLM's compute in float32, even if training or sampling uses another dtype. So a difference means another function, not
rounding. vLLM computes in the dtype that it samples in, and its tolerance allows for rounding.

Cost: about `SHORT_TOKENS` + `LONG_TOKENS` tokens through each forward pass, and more if the config says that attention
or positions change with the length; see `MOST_TOKENS` and `MOST_WORK`. Uses no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from stages.algorithms.token_statistics import capped
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.statistics import head_of, policy_statistics
from stages.foundations.errors import UserError
from stages.observe.progress import say

SHORT_TOKENS, LONG_TOKENS = 16, 64
BEYOND_TOKENS = 32
"""Tokens by which the long sequence exceeds a sliding window or the original positions, if the config has them."""
COMPARED_TOKENS = 64
"""Last tokens of a sequence whose log-probs are compared: log-probs of the whole vocabulary are computed for them."""
MOST_TOKENS = 4096 + BEYOND_TOKENS
"""Limit of the long sequence: plain attention needs memory of the square of its tokens for each head."""
MOST_WORK = {"cpu": 2e11, "cuda": 4e13}
"""Parameters times tokens of the long sequence: a few seconds of 8 CPU cores, or of one large GPU."""
TOLERANCE = math.sqrt(torch.finfo(torch.float32).eps)
"""Largest difference of a log-prob, in standard deviations of the logits: another order of sums may cost half of
float32's digits. Over 45 small models, correct forward passes differed by at most 7e-6, wrong ones by 1e-3 or more."""
AMPLIFIED_LOGITS = 10.0
"""Least standard deviation of the logits at which the head is compared: a cap does not change small logits."""

ENGINE_REMEDY = "Set `sampler.kind: torch`, or sample a policy that both represent, such as Llama or Qwen3"

ReadLogProbs = Callable[[PreTrainedModel, Sequence[Sequence[int]], Sequence[Sequence[int]]], Sequence[Sequence[float]]]
"""(model, prompts, responses) -> log-probs of each response's tokens."""


def check_training_forward(model: PreTrainedModel, folder: Path, device: torch.device) -> None:
    """Raises UserError when training would compute other log-probs than transformers for the policy of `folder`.

    Compares rows with one sequence each, a row with both, and the head at large logits. Computes on `device` if the
    weights fit there, and leaves the model unchanged.
    """
    remedy = "Train a policy of another family, such as Llama, Qwen3, Gemma 3 or Granite"
    with _probing(model, folder, device, "training", remedy) as sequences:
        long, short = sequences
        expected, spread = _reference(model, sequences)
        apart, packed = (_trained(model, sequences, tokens) for tokens in (None, long.tokens + short.tokens))
        gaps = {
            "rows with one sequence each": (_gap(apart, expected), spread),
            "a row with both sequences": (_gap(packed, expected), spread),
            "large logits": _head_gap(model, short),
        }
        _refuse(model, folder, "training", gaps, sequences, remedy)


def check_sampler_forward(model: PreTrainedModel, folder: Path, device: torch.device, logprobs: ReadLogProbs) -> None:
    """Raises UserError when a sampler, whose forward pass is `logprobs`, would sample from other probabilities."""
    remedy = "Set `sampler.kind: vllm`"
    with _probing(model, folder, device, "the torch sampler", remedy) as sequences:
        # The long sequence first: a sampler's cache of it must not be used for the short one.
        prompts, responses = [one.prompt for one in sequences], [one.response for one in sequences]
        sampled = [torch.tensor(row) for row in logprobs(model, prompts, responses)]
        expected, spread = _reference(model, sequences)
        gaps = {"given responses": (_gap(sampled, expected), spread)}
        _refuse(model, folder, "the torch sampler", gaps, sequences, remedy)


@dataclass(frozen=True)
class Reference:
    """transformers' log-probs for the policy of a folder, kept until another engine has started."""

    model: str
    folder: Path
    sequences: tuple[TokenSequence, TokenSequence]
    logprobs: Tensor
    """Log-probs of both responses, one after the other."""
    spread: float


def reference_of(model: PreTrainedModel, folder: Path, device: torch.device, user: str, most_tokens: int) -> Reference:
    """Returns transformers' log-probs of sequences to compare with `user`, of at most `most_tokens` each."""
    with _probing(model, folder, device, user, ENGINE_REMEDY, most_tokens) as sequences:
        logprobs, spread = _reference(model, sequences)
        return Reference(_name(model), folder, sequences, torch.cat(logprobs).cpu(), spread)


def check_engine_forward(
    reference: Reference, user: str, dtype: torch.dtype, read: Callable[..., Sequence[Sequence[float]]]
) -> None:
    """Raises UserError when an engine that computes in `dtype` would sample from other probabilities.

    `read` takes prompts and responses. In 32 bits the largest difference counts. In 16 bits the mean difference counts,
    because rounding alone may move single tokens far.
    """
    # The long sequence first: an engine's cache of it must not be used for the short one.
    rows = read([one.prompt for one in reference.sequences], [one.response for one in reference.sequences])
    differences = (torch.tensor([value for row in rows for value in row]) - reference.logprobs).abs()
    gap = float(differences.max() if dtype == torch.float32 else differences.mean())
    tolerance = math.sqrt(torch.finfo(dtype).eps) * reference.spread
    # `not <=` instead of `>`: a NaN log-prob must fail the check.
    if not gap <= tolerance:
        lengths = " and ".join(str(sequence.tokens) for sequence in reference.sequences)
        raise UserError(
            f"{user} does not compute what transformers computes for {reference.model} of {reference.folder}. On "
            f"sequences of {lengths} tokens its log-probs in {str(dtype).removeprefix('torch.')} differ by {gap:.2g} "
            f"nats (allowed: {tolerance:.1g}). {ENGINE_REMEDY}"
        )


def probe_sequences(model: PreTrainedModel, most_tokens: int = MOST_TOKENS) -> tuple[TokenSequence, TokenSequence]:
    """Returns a long and a short sequence of fixed, scattered token ids.

    The long one exceeds every length at which the config changes attention or positions, within the limits of
    `most_tokens`, `MOST_TOKENS`, `MOST_WORK` and the policy's positions. A log line says when a limit prevents it.
    """
    config = model.config.get_text_config()
    kinds = _nested(config.to_dict(), "rope_type")
    known = getattr(config, "max_position_embeddings", None) or MOST_TOKENS
    changes = _nested(config.to_dict(), "sliding_window") + _nested(config.to_dict(), "attention_chunk_size")
    # These kinds use other frequencies beyond the length of the model's first training.
    if "longrope" in kinds or "dynamic" in kinds:
        changes += _nested(config.to_dict(), "original_max_position_embeddings") or [known]
    # Dynamic scaling allows any length, so the config's maximum does not limit the probe.
    if "dynamic" in kinds:
        known = max(known, max(changes) + BEYOND_TOKENS)
    # An engine rejects sequences longer than the limit that it was started with.
    known = min(known, most_tokens)
    wanted = min(max([LONG_TOKENS, *(change + BEYOND_TOKENS for change in changes if change < known)]), known)
    work = int(MOST_WORK[model.device.type] / model.num_parameters())
    length = max(min(wanted, MOST_TOKENS, work), min(SHORT_TOKENS, known))
    if any(length <= change < wanted for change in changes):
        say(
            f"the policy's attention changes after {max(change for change in changes if change < wanted)} tokens; "
            f"only {length} tokens were compared with transformers"
        )
    # Two primes: the ids are scattered over the vocabulary, and equal ids are far apart.
    ids = [(7919 * place + 104_729) % config.vocab_size for place in range(length + SHORT_TOKENS)]
    long, short = ids[:length], ids[length : length + min(SHORT_TOKENS, known)]
    cut = max(1, length - COMPARED_TOKENS)
    return TokenSequence(long[:cut], long[cut:]), TokenSequence(short[:1], short[1:])


def _nested(config: Any, name: str) -> list[Any]:
    """Returns every value of `name` anywhere in a config, without None."""
    if not isinstance(config, dict):
        return []
    here = [config[name]] if config.get(name) is not None else []
    return here + [value for part in config.values() for value in _nested(part, name)]


@contextmanager
def _probing(
    model: PreTrainedModel, folder: Path, device: torch.device, user: str, remedy: str, most_tokens: int = MOST_TOKENS
) -> Iterator[tuple[TokenSequence, TokenSequence]]:
    """Yields the probe's sequences, with the model's weights in float32 and on `device` (if they fit) in the block.

    Buffers keep their dtypes: 32-bit buffers could not be restored from 16 bits. UserError when a forward pass fails
    because it does not support this family's arguments.
    """
    place, dtypes = model.device, [(weight, weight.dtype) for weight in model.parameters()]
    with torch.no_grad():
        # If the model does not fit, the CPU computes the probe: slower, but the same function.
        if _fits(model, device):
            model.to(device)
        # Parameters one by one, because `model.float()` would convert the buffers too.
        for weight, _ in dtypes:
            weight.data = weight.data.float()
        try:
            yield probe_sequences(model, most_tokens)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{user} cannot represent {_name(model)} of {folder}: its forward pass fails ({error}). {remedy}"
            ) from error
        finally:
            for weight, dtype in dtypes:
                weight.data = weight.data.to(dtype)
            model.to(place)


def _fits(model: PreTrainedModel, device: torch.device) -> bool:
    """Returns True if the weights in float32 leave half of a GPU's free memory for attention and logits."""
    # 4 bytes a weight in float32, and as much free memory again.
    return device.type != "cuda" or 8 * model.num_parameters() < torch.cuda.mem_get_info(device)[0]


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} ({model.config.model_type})"


@contextmanager
def _plain_attention(model: PreTrainedModel) -> Iterator[None]:
    usual = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    try:
        yield
    finally:
        model.config._attn_implementation = usual


def _logits(model: PreTrainedModel, sequence: TokenSequence) -> Tensor:
    """Returns transformers' logits [tokens, vocabulary] after each token of the sequence."""
    ids = torch.tensor([[*sequence.prompt, *sequence.response]], device=model.device)
    with _plain_attention(model):
        return model(input_ids=ids, use_cache=False).logits[0].float()


def _reference(model: PreTrainedModel, sequences: Sequence[TokenSequence]) -> tuple[list[Tensor], float]:
    """Returns transformers' log-probs of each response's tokens, and the largest standard deviation of its logits."""
    logprobs, spread = [], 0.0
    for one in sequences:
        logits = _logits(model, one)[len(one.prompt) - 1 : -1]
        spread = max(spread, float(logits.std()))
        ids = torch.tensor(list(one.response), device=logits.device)
        logprobs.append(logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0])
    return logprobs, spread


def _trained(model: PreTrainedModel, sequences: Sequence[TokenSequence], row_tokens: int | None) -> list[Tensor]:
    batch = pack(sequences, row_tokens=row_tokens).to(model.device)
    logprobs = policy_statistics(model, batch).logprobs
    return [row[: len(one.response)] for row, one in zip(logprobs, sequences, strict=True)]


def _gap(logprobs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the largest difference; NaN if one is NaN."""
    return float((torch.cat(list(logprobs)).cpu() - torch.cat(list(expected)).cpu()).abs().max())


def _head_gap(model: PreTrainedModel, sequence: TokenSequence) -> tuple[float, float]:
    """Returns the largest difference, at large logits, between transformers' and training's log-probs of the same
    hidden states, and the standard deviation of these logits."""
    head, spread = head_of(model), float(_logits(model, sequence).std())
    factor = max(1.0, AMPLIFIED_LOGITS / max(spread, 1e-12))
    amplified: list[Tensor] = []

    def amplify(_: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        amplified.append(inputs[0] * factor)
        return (amplified[-1],)

    # Random or small policies have logits near 0, where a cap on them (Gemma 2's) would not show.
    with model.get_output_embeddings().register_forward_pre_hook(amplify):
        logits = _logits(model, sequence)
    plain = head.scale * capped(F.linear(amplified[0][0], head.weight), head.cap)
    return float((logits.log_softmax(-1) - plain.log_softmax(-1)).abs().max()), float(plain.std())


def _refuse(
    model: PreTrainedModel,
    folder: Path,
    user: str,
    gaps: dict[str, tuple[float, float]],
    sequences: Sequence[TokenSequence],
    remedy: str,
) -> None:
    """Raises UserError for a gap that is more than rounding, relative to the spread of its logits, or NaN."""
    wrong = [
        f"{gap:.2g} in {way} (allowed: {TOLERANCE * spread:.1g})"
        for way, (gap, spread) in gaps.items()
        if not gap <= TOLERANCE * spread
    ]
    if wrong:
        lengths = " and ".join(str(sequence.tokens) for sequence in sequences)
        raise UserError(
            f"{user} cannot represent {_name(model)} of {folder}. On sequences of {lengths} tokens its log-probs "
            f"differ from transformers' by these nats: {'; '.join(wrong)}. {remedy}"
        )
