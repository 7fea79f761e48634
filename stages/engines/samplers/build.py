"""Builds the sampler that section `sampler` describes, and splits the prompts among the ranks.

On several ranks, each rank or tensor-parallel group of ranks has an engine and samples a separate part of the prompts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stages.engines.samplers.params import Mismatch, RayReplicas, SamplerParams, TorchSamplerParams, VllmSamplerParams
from stages.engines.samplers.protocol import Sampler
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt, chosen
from stages.observe.quick_imports import quick_imports

if TYPE_CHECKING:  # the hub of the asynchronous loop samples too, and has no torch
    from stages.engines.trainers.protocol import Ranks


def build_sampler(
    params: TorchSamplerParams | VllmSamplerParams,
    policy_folder: Path,
    mismatch: Mismatch | None = None,
    prompt: PlainPrompt | ChatPrompt | None = None,
) -> Sampler:
    """Returns the sampler that `params` describes; it holds the policy of `policy_folder` as version 0.

    The token that closes a turn in the template of `prompt` ends a response too.

    With a `mismatch` the built-in sampler's weights differ from those that it gets; other samplers raise ValueError.
    """
    match chosen("sampler", params):
        case TorchSamplerParams():
            with quick_imports():
                from stages.engines.samplers.torch_sampler import TorchSampler

            return TorchSampler.from_folder(params, policy_folder, mismatch, prompt)
        case VllmSamplerParams():
            # A real engine already has a mismatch, from which one made on purpose could not be distinguished.
            if mismatch:
                raise ValueError("a mismatch is simulated in the built-in sampler: take sampler.kind torch")
            from stages.engines.samplers.vllm_sampler import VllmSampler

            return VllmSampler(params, policy_folder, prompt)


def context_tokens(params: TorchSamplerParams | VllmSamplerParams, policy_folder: Path) -> float:
    """Returns the policy's number of positions for prompt and response together; infinite if its config names none.

    Reads config.json, so it needs no loaded model.
    """
    config = json.loads((policy_folder / "config.json").read_text(encoding="utf-8"))
    # A model that also takes images has the sizes of its language part in a separate config.
    named = [part.get("max_position_embeddings") for part in (config, config.get("text_config") or {})]
    return min(filter(None, [*named, getattr(params, "max_model_tokens", None)]), default=math.inf)


Item = TypeVar("Item")
Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class DrawingShare:
    """The part of the prompts that this rank samples. A response does not depend on its rank: see `Trajectory`."""

    ranks: Ranks
    width: int = 1
    """Ranks that share one engine. They are neighbours and all sample the same responses."""

    @property
    def is_engine_leader(self) -> bool:
        """True on the first rank of each engine, whose samples `assemble` uses."""
        return self.ranks.rank % self.width == 0

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Returns this rank's part of the items."""
        # Round robin, so that neighbours, which often have similar lengths, are spread over the engines.
        return items[self.ranks.rank // self.width :: self.ranks.world_size // self.width]

    def assemble(self, drawn: Sequence[Drawn], of_prompts: int) -> list[Drawn]:
        """Returns the samples of all ranks for `of_prompts` prompts, in order; empty except on rank 0; collective.

        There is one picklable object for each prompt.
        """
        if self.ranks.world_size == 1:
            return list(drawn)
        # The other ranks of an engine have the same samples, so they contribute None to the gathering.
        parts = self.ranks.gather_to_first(drawn if self.is_engine_leader else None)[:: self.width]
        return interleaved(parts, of_prompts) if parts else []

    def everywhere(self, drawn: Sequence[Drawn], of_prompts: int) -> list[Drawn]:
        """Returns the result of `assemble` on every rank."""
        return self.ranks.broadcast(self.assemble(drawn, of_prompts))


def interleaved(parts: Sequence[Sequence[Drawn]], count: int) -> list[Drawn]:
    """Merges the parts: element i of part p moves to i x parts + p, because `DrawingShare.of` deals round robin."""
    return [parts[place % len(parts)][place // len(parts)] for place in range(count)]


def drawing_share(params: SamplerParams, ranks: Ranks) -> DrawingShare:
    """Returns this rank's share. Raises UserError if the ranks do not form whole engines or engines are elsewhere."""
    if ranks.world_size == 1:
        return DrawingShare(ranks)
    if isinstance(params.replicas, RayReplicas) and params.replicas.count > 1:
        raise UserError(
            f"{ranks.world_size} ranks draw with an engine each, and sampler.replicas.kind ray asks for others beside "
            "them: leave sampler.replicas out, or start the stage as one process"
        )
    width = params.tensor_parallel if isinstance(params, VllmSamplerParams) else 1
    if ranks.world_size % width:
        raise UserError(
            f"sampler.tensor_parallel {width} does not divide the {ranks.world_size} ranks: each engine is spread over "
            "so many neighbouring ranks"
        )
    return DrawingShare(ranks, width)
