"""Policies as folders: weights in safetensors, config and tokenizer, as transformers writes them.

Loading checks that the folder is a complete policy. The last part makes policies from other sources: random weights and
GGUF files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.initialization import no_init_weights
from transformers.utils.logging import disable_progress_bar
from transformers.utils.quantization_config import GgufConfig

from stages.engines.new_tokenizers import END, PAD, byte_level_tokenizer
from stages.engines.policies.forward_probe import check_training_forward
from stages.engines.policies.tokenizers import load_tokenizer
from stages.foundations.errors import UserError
from stages.observe.progress import say

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "mixed": torch.bfloat16}
"""The dtype that a sampler or a trainer computes in, by its setting `dtype`."""
_BROKEN = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    *(SafetensorError, StrictDataclassError),
)
"""Exceptions of transformers for invalid configs or weights; running out of memory is not one of them."""
PACKED = 16
"""Parameters that one stored number may hold: quantised weights are packed, 8 numbers of 4 bits in one int32."""
NAMED = 3
"""Number of weights that an error about many of them names."""


def load_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Returns the model of a policy folder in `dtype` on the CPU, with torch's attention if its architecture allows it.

    UserError when the folder is not a policy, or its weights are not exactly those of the architecture, all finite.
    """
    disable_progress_bar()
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            # Rejected below instead, with the names of the weights.
            ignore_mismatched_sizes=True,
        )
    except _BROKEN as error:
        raise _not_a_policy(folder, error) from error
    _check_weights(model, loading, folder)
    _keep_attention_caps(model)
    return model


def load_config(folder: Path) -> PretrainedConfig:
    """Returns the config of a policy folder; UserError when it is not a policy."""
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except _BROKEN as error:
        raise _not_a_policy(folder, error) from error


def _not_a_policy(folder: Path, error: Exception) -> UserError:
    # transformers advises to run the code, and names a page on the hub for a local folder.
    if "trust_remote_code" in str(error):
        return UserError(
            f"{folder} brings Python code for its model (`auto_map` in config.json), which Retrace never runs: use a "
            "policy of a family that transformers has"
        )
    return UserError(f"{folder} is not a policy ({error}): run `dvc repro base` to make one")


def _keep_attention_caps(model: PreTrainedModel) -> None:
    """Makes a model that caps its attention scores (Gemma 2) use plain attention: `sdpa` ignores the cap."""
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.config._attn_implementation = "eager"


def _check_weights(model: PreTrainedModel, loading: Mapping[str, Iterable[Any]], folder: Path) -> None:
    """Raises UserError when weights are missing, unexpected or of another shape, or one is NaN or infinite.

    `loading` is transformers' loading info, which accounts for tied weights and obsolete names.
    """
    # Smallest and largest value show NaN and infinity in one pass, without a mask as large as the weight.
    values = ((name, torch.stack(weight.aminmax())) for name, weight in model.named_parameters() if weight.numel())
    faults = {
        "missing": loading["missing_keys"],
        "unexpected": loading["unexpected_keys"],
        "of another shape": [name for name, *_ in loading["mismatched_keys"]],
        "not finite": [name for name, extremes in values if not extremes.isfinite().all()],
    }
    listed = [_listed(kind, sorted(names)) for kind, names in faults.items() if names]
    if listed:
        raise UserError(
            f"the weights of {folder} do not fit {type(model).__name__}: {'; '.join(listed)}. Use the complete "
            "weights that belong to its config.json, with the tensor names that transformers saves"
        )


def _listed(kind: str, names: list[str]) -> str:
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names)} {kind} ({', '.join(names[:NAMED])}{more})"


def model_without_weights(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Works like `load_model`, with uninitialised weights, which take no memory until they are written."""
    config = load_config(folder)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    model.tie_weights()
    _keep_attention_caps(model)
    return model


def check_tokenizer_fits(tokenizer: PreTrainedTokenizerBase, rows: int, folder: Path) -> None:
    """Raises UserError when the tokenizer has ids beyond the embedding's `rows`."""
    # More rows than tokens are usual: matrices are padded to a multiple that is fast on GPUs.
    if len(tokenizer) > rows:
        raise UserError(
            f"the tokenizer of {folder} has {len(tokenizer)} tokens but the model embeds {rows}: "
            "take the tokenizer that belongs to the model, or resize the embeddings"
        )


def load_policy(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns model and tokenizer of a policy folder, checked against each other."""
    model, tokenizer = load_model(folder, dtype), load_tokenizer(folder)
    check_tokenizer_fits(tokenizer, model.get_input_embeddings().num_embeddings, folder)
    return model, tokenizer


def count_policy(folder: Path) -> dict[str, int]:
    """Returns sizes of the policy in `folder`: `policy/parameters` and `policy/vocabulary`; checks that it loads.

    Warns early if training would reject it: it may be meant only for sampling with vLLM.
    """
    _check_sizes(folder)
    model, tokenizer = load_policy(folder, torch.float32)
    try:
        check_training_forward(model, folder, model.device)
    except UserError as error:
        say(f"WARNING: only vLLM can sample this policy, and stages that train will reject it: {error}")
    return {"policy/parameters": model.num_parameters(), "policy/vocabulary": len(tokenizer)}


def _check_sizes(folder: Path) -> None:
    """Raises UserError when config.json describes far more weights than there are: loading would allocate them all."""
    config, sizes = load_config(folder), []
    try:
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "pt") as weights:
                names = weights.keys()
                sizes += [math.prod(weights.get_slice(name).get_shape()) for name in names]
        # A file has weights for each of its layers, so more layers than weights are a mistake. Building the model would
        # not end, even on the device `meta`.
        layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
        if sizes and layers > len(sizes):
            raise ValueError(f"config.json has num_hidden_layers {layers}, and the weights are {len(sizes)} tensors")
        with torch.device("meta"), no_init_weights():
            described = AutoModelForCausalLM.from_config(config, trust_remote_code=False).num_parameters()
    # On the device `meta` nothing is allocated: a RuntimeError means sizes that no tensor can have.
    except (*_BROKEN, RuntimeError) as error:
        raise _not_a_policy(folder, error) from error
    if sizes and described > PACKED * sum(sizes):
        raise UserError(
            f"config.json of {folder} describes {described:,} parameters, and the weights there have {sum(sizes):,}: "
            "correct its sizes (vocab_size, hidden_size, ...), or use the weights that belong to it"
        )


def save_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes both into `folder` (which the caller renames when complete); equal weights give equal bytes.

    `weights`, by parameter name, replace the model's weights, which a trainer may have spread over ranks. They are
    written here and not by `save_pretrained`, which would import DeepSpeed if it is installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(model.named_parameters()) if weights is None else dict(weights)
    # As the hub has them: transformers reads both, and vLLM does not know its names for some families' experts.
    named = revert_weight_conversion(model, weights).items()
    weights = {name: weight.detach().cpu().contiguous() for name, weight in named}
    # `format` as transformers writes it: older versions reject a file without it.
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    # The dtype on disk, not that of the trainer: `dtype: auto` loads in this dtype.
    model.config.dtype = next(iter(weights.values())).dtype
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class LlamaSizes(Protocol):
    """Sizes of a random Llama; see `stages.base.stage.RandomBase`."""

    hidden_size: int
    layers: int
    heads: int
    feed_forward_size: int
    max_position_tokens: int
    initializer_range: float
    vocabulary_size: int


def random_policy(
    sizes: LlamaSizes, corpus: Iterable[str], seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Returns a Llama with random weights and tied embeddings, and a byte-level BPE tokenizer trained on `corpus`.

    Equal arguments give equal weights and equal token ids.
    """
    tokenizer = train_tokenizer(corpus, sizes.vocabulary_size)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.feed_forward_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=sizes.max_position_tokens,
        initializer_range=sizes.initializer_range,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config), tokenizer


def random_model(model_type: str, **config: Any) -> PreTrainedModel:
    """Returns a model with random weights in float32, of a config of transformers; it has no tokenizer."""
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config), dtype=torch.float32)


def train_tokenizer(corpus: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Returns `byte_level_tokenizer` as a tokenizer of transformers."""
    tokenizer = byte_level_tokenizer(corpus, vocabulary_size)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, padding_side="left")


def dequantise_policy(gguf_file: Path, folder: Path) -> None:
    """Writes the policy of a GGUF file into `folder` in float32; ValueError when transformers cannot read it."""
    disable_progress_bar()
    place, name = gguf_file.parent, gguf_file.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    save_policy(model, tokenizer, folder)
