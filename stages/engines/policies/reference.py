"""A frozen policy that training is held near: log-probabilities of given responses, never a gradient."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.engines.policies.packing import ResponseBatch
from stages.engines.policies.policy_folders import DTYPES, load_policy
from stages.engines.policies.statistics import policy_statistics
from stages.engines.policies.varlen_attention import use_varlen_attention


class ReferencePolicy:
    """The policy of a folder, as it was when the round began."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self.device = device
        self.model = model.to(device).eval().requires_grad_(False)

    @classmethod
    def from_folder(cls, folder: Path, dtype: str, device: torch.device) -> ReferencePolicy:
        """The policy in `folder` on `device`, in what a trainer of this `dtype` computes in."""
        model, _ = load_policy(folder, DTYPES[dtype])
        use_varlen_attention(model, device, model.dtype)
        return cls(model, device)

    @torch.no_grad()
    def logprobs(self, micro_batch: ResponseBatch) -> Tensor:
        """Log-probs [responses, tokens] on the CPU, at the batch's temperature; 0 where its mask is 0."""
        return policy_statistics(self.model, micro_batch.to(self.device)).logprobs.cpu()

    def close(self) -> None:
        """Frees the model."""
        del self.model
