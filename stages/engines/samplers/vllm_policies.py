"""A policy folder as vLLM will read it: checked before the engine starts, which takes long and says little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch

from stages.engines.policies.forward_probe import Reference, reference_of
from stages.engines.policies.policy_folders import load_model
from stages.engines.policies.tokenizers import load_tokenizer
from stages.foundations.errors import UserError
from stages.observe.progress import say


def _config(policy_folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(policy_folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{policy_folder} is not a policy ({error}): run `dvc repro base` to make one"
        ) from error
    return config.get_text_config()


def position_limit(policy_folder: Path) -> int:
    """Positions that the policy's config allows."""
    return _config(policy_folder).max_position_embeddings


def vocabulary_size(policy_folder: Path) -> int:
    """Tokens that the policy gives a probability to."""
    return _config(policy_folder).vocab_size


def check_policy(policy_folder: Path, max_model_tokens: int) -> int:
    """The end-of-sequence token; UserError when tokenizer, config and `sampler.max_model_tokens` do not fit."""
    config, tokenizer = _config(policy_folder), load_tokenizer(policy_folder)
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"the tokenizer of {policy_folder} has {len(tokenizer)} tokens but the model embeds "
            f"{config.vocab_size}: take the tokenizer that belongs to the model, or resize the embeddings"
        )
    if max_model_tokens > config.max_position_embeddings:
        raise UserError(
            f"sampler.max_model_tokens = {max_model_tokens}, but the policy {policy_folder} has "
            f"{config.max_position_embeddings} positions: lower it to that"
        )
    if not weight_names(policy_folder):
        raise UserError(
            f"{policy_folder} holds no safetensors weights: run `dvc repro base` to make a policy"
        )
    return tokenizer.eos_token_id


def transformers_reference(policy_folder: Path, device: torch.device, most_tokens: int) -> Reference | None:
    """What vLLM's log-probs are compared with. UserError for weights that do not fit the architecture, or are not
    finite.

    None, and a line, where the weights in float32 would fill more than half of the free memory.
    """
    stored = sum(path.stat().st_size for path in policy_folder.glob("*.safetensors"))
    if 2 * stored > psutil.virtual_memory().available / 2:  # stored with at least two bytes a number
        say(
            f"{policy_folder} is too large for this machine's memory to compare vLLM's log-probs with transformers'"
        )
        return None
    model = load_model(policy_folder, torch.float32)
    return reference_of(model, policy_folder, device, "vLLM", most_tokens)


def weight_names(policy_folder: Path) -> set[str]:
    """Names of the weights in the policy's files."""
    from safetensors import safe_open

    names: set[str] = set()
    for path in sorted(policy_folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            names.update(tensors.keys())
    return names
