"""The weights that a sampler uses in place of those it is given, to make a mismatch on purpose."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stages.engines.samplers.params import Bfloat16Weights, Int8Weights, Mismatch, StaleWeights

INT8_LEVELS = 127


def rounded(weight: Tensor, mismatch: Mismatch | None) -> Tensor:
    """`weight` after the round trip through the precision that `mismatch` names, in its own dtype."""
    match mismatch:
        case Bfloat16Weights():
            return weight.to(torch.bfloat16).to(weight.dtype)
        case Int8Weights():
            return _int8_by_row(weight) if weight.ndim == 2 else weight
        case StaleWeights() | None:
            return weight


def _int8_by_row(matrix: Tensor) -> Tensor:
    """Each row on the levels -127..127 times its largest absolute value / 127; a row of zeros stays so."""
    scale = matrix.float().abs().amax(dim=1, keepdim=True) / INT8_LEVELS
    levels = (matrix.float() / torch.where(scale > 0, scale, 1.0)).round()
    return (levels * scale).to(matrix.dtype)


class PastWeights:
    """Versions of the weights, to serve one of some versions ago. Starts with version 0."""

    def __init__(self, versions: int | None, first: Mapping[str, Tensor]) -> None:
        self.versions = versions
        self.kept = {0: _copied(first)}

    def serve(
        self, named_tensors: Mapping[str, Tensor], policy_version: int
    ) -> tuple[Mapping[str, Tensor], int]:
        """Takes the weights of `policy_version`; gives those to use and their version.

        What `named_tensors` leaves out stays as it was in the last version taken.
        """
        if self.versions is None:
            return self.kept[0], 0
        latest = self.kept[max(self.kept)]
        self.kept[policy_version] = {**latest, **_copied(named_tensors)}
        wanted = max(0, policy_version - self.versions)
        self.kept = {version: weights for version, weights in self.kept.items() if version >= wanted}
        served = min(self.kept)
        return self.kept[served], served

    def to_tensors(self) -> dict[str, Tensor]:
        """All that is kept, as `version/name`, each tensor with memory of its own.

        Empty where version 0 serves throughout: whoever starts again starts with it.
        """
        if self.versions is None:
            return {}
        return {
            f"{version}/{name}": weight.clone()
            for version, weights in self.kept.items()
            for name, weight in weights.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Keeps what `to_tensors` gave, and nothing else."""
        self.kept = {}
        for key, weight in tensors.items():
            version, name = key.split("/", 1)
            self.kept.setdefault(int(version), {})[name] = weight


def _copied(named_tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in named_tensors.items()}
