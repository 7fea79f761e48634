"""The sampler that section `sampler` describes, and the part of the prompts that each rank samples.

On several ranks each rank, or tensor-parallel group of ranks, has an engine and samples its own part.
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
from stages.foundations.params import chosen
from stages.observe.quick_imports import quick_imports

if TYPE_CHECKING:  # the hub of the asynchronous loop draws too, and has no torch
    from stages.engines.trainers.protocol import Ranks


def build_sampler(
    params: TorchSamplerParams | VllmSamplerParams, policy_folder: Path, mismatch: Mismatch | None = None
) -> Sampler:
    """The sampler that `params` describes, holding the policy of `policy_folder` as version 0.

    A `mismatch` makes the built-in sampler's weights differ from those that it is given; others cannot (ValueError).
    """
    match chosen("sampler", params):
        case TorchSamplerParams():
            with quick_imports():
                from stages.engines.samplers.torch_sampler import TorchSampler

            return TorchSampler.from_folder(params, policy_folder, mismatch)
        case VllmSamplerParams():
            # A real engine has a mismatch of its own: nobody could tell one on purpose from it.
            if mismatch:
                raise ValueError("a mismatch is simulated in the built-in sampler: take sampler.kind torch")
            from stages.engines.samplers.vllm_sampler import VllmSampler

            return VllmSampler(params, policy_folder)


def context_tokens(params: TorchSamplerParams | VllmSamplerParams, policy_folder: Path) -> float:
    """Tokens of prompt and response together that the policy has positions for; infinite where its config names none.

    Read from config.json, before anything is loaded.
    """
    config = json.loads((policy_folder / "config.json").read_text(encoding="utf-8"))
    # A model that also sees has the sizes of its language part in a config of its own.
    named = [part.get("max_position_embeddings") for part in (config, config.get("text_config") or {})]
    return min(filter(None, [*named, getattr(params, "max_model_tokens", None)]), default=math.inf)


Item = TypeVar("Item")
Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class DrawingShare:
    """The part of the prompts that this rank draws. Who draws a response changes nothing about it: see `Trajectory`."""

    ranks: Ranks
    width: int = 1
    """Ranks of one engine: neighbours, which all draw the same."""

    @property
    def is_engine_leader(self) -> bool:
        """True on the first rank of each engine, whose part of `assemble` counts."""
        return self.ranks.rank % self.width == 0

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """This rank's part of them."""
        # In turn, so that neighbours, which are often alike in length, go to different engines.
        return items[self.ranks.rank // self.width :: self.ranks.world_size // self.width]

    def assemble(self, drawn: Sequence[Drawn], of_prompts: int) -> list[Drawn]:
        """What all ranks have drawn for their parts of so many prompts, in order; empty except on rank 0; collective.

        One picklable thing for each prompt.
        """
        if self.ranks.world_size == 1:
            return list(drawn)
        # The other ranks of an engine have drawn the same: they take part in the gathering with nothing.
        parts = self.ranks.gather_to_first(drawn if self.is_engine_leader else None)[:: self.width]
        return interleaved(parts, of_prompts) if parts else []

    def everywhere(self, drawn: Sequence[Drawn], of_prompts: int) -> list[Drawn]:
        """`assemble`, on every rank."""
        return self.ranks.broadcast(self.assemble(drawn, of_prompts))


def interleaved(parts: Sequence[Sequence[Drawn]], count: int) -> list[Drawn]:
    """Element i of part p is at i x parts + p: `DrawingShare.of` deals out in turn."""
    return [parts[place % len(parts)][place // len(parts)] for place in range(count)]


def drawing_share(params: SamplerParams, ranks: Ranks) -> DrawingShare:
    """The share of this rank; UserError where the ranks do not make whole engines, or engines are elsewhere."""
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
