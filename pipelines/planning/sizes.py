"""The sizes that a plan starts from: of GPUs, and of a policy that does not exist yet.

GPUs are a small table from their makers' data sheets. A policy's sizes come from the recipe, from a config.json, or
from the table of published configurations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stages.base.stage import FolderBase, GgufPackageBase, HubBase, RandomBase
from stages.foundations.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    memory_gb: float
    """10^9 bytes."""
    bfloat16_flops: float
    """FLOP/s of dense products."""
    float32_flops: float
    """FLOP/s without tensor cores."""
    bandwidth: float
    """Bytes of its memory per second."""

    def flops(self, dtype: str) -> float:
        return self.float32_flops if dtype == "float32" else self.bfloat16_flops


def _gpu(name: str, memory_gb: float, bfloat16: float, float32: float, terabytes: float) -> Gpu:
    return Gpu(name, memory_gb, bfloat16 * 1e12, float32 * 1e12, terabytes * 1e12)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("A100", 80, 312, 19.5, 2.04),  # NVIDIA A100 80GB data sheet, SXM
        _gpu("A800", 80, 312, 19.5, 2.04),  # as A100, with slower NVLink
        _gpu("H100", 80, 989, 67, 3.35),  # NVIDIA H100 data sheet, SXM, half of the figures with sparsity
        _gpu("H800", 80, 989, 67, 3.35),  # as H100, with slower NVLink
        _gpu("H200", 141, 989, 67, 4.8),  # NVIDIA H200 data sheet, SXM, half of the figures with sparsity
        _gpu("H20", 96, 148, 44, 4.0),  # 148 TFLOP/s and 4.0 TB/s as reported; NVIDIA publishes no data sheet
        _gpu("L40S", 48, 362, 91.6, 0.864),  # NVIDIA L40S data sheet, half of the figures with sparsity
        # NVIDIA Ada GPU architecture, appendix A, products added up in float32.
        _gpu("RTX4090", 24, 165, 82.6, 1.008),
        _gpu("B200", 180, 2250, 80, 8.0),  # NVIDIA DGX B200 data sheet, an eighth, sparse figures halved
    )
}
# Mixed precision counts its float32 copy as optimizer state. vLLM's `auto` turns float32 checkpoints into float16.
NUMBER_BYTES = {"float32": 4, "mixed": 2, "bfloat16": 2, "float16": 2, "auto": 2}


def find_gpu(name: str) -> Gpu:
    """Returns the GPU of that name. UserError lists the GPUs of the table."""
    found = GPUS.get(name.upper().replace("-", "").replace(" ", ""))
    if found is None:
        raise UserError(f"no GPU {name!r} in the table: there are {', '.join(GPUS)}, and `cpu`, this machine")
    return found


@dataclass(frozen=True)
class Shape:
    """A decoder of the Llama family: rotary positions, gated feed-forward, grouped key-value heads."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    is_tied: bool
    """The head shares the embedding's weights."""
    has_qkv_bias: bool = False
    has_head_norms: bool = False
    max_positions: int = 0
    """0 where the limit is not known."""
    is_untrained: bool = False
    """Random weights: the end token is as likely as any other."""

    @property
    def layer_matrices(self) -> int:
        """Number of weights in the matrices of one layer."""
        # Queries and output for all heads; keys and values for the key-value heads.
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.feed_forward

    @property
    def parameters(self) -> int:
        """Number of all weights; a tied head counts once."""
        vectors = 2 * self.hidden
        vectors += (self.heads + 2 * self.kv_heads) * self.head_size if self.has_qkv_bias else 0
        vectors += 2 * self.head_size if self.has_head_norms else 0
        # An untied head has separate weights; the last term of the sum is the final norm.
        embeddings = (1 if self.is_tied else 2) * self.vocabulary * self.hidden
        return self.layers * (self.layer_matrices + vectors) + embeddings + self.hidden

    @property
    def multiplied(self) -> int:
        """Number of weights that multiply a token: all matrices and the head; an embedding lookup costs nothing."""
        return self.layers * self.layer_matrices + self.vocabulary * self.hidden

    def adapter_weights(self, rank: int, targets: str | Sequence[str]) -> int:
        """Weights of LoRA beside the matrices of the layers that `targets` names, as these families name them."""
        # Input and output of each: LoRA has `rank` rows of the one and columns of the other.
        heads, kv_heads = (self.hidden + count * self.head_size for count in (self.heads, self.kv_heads))
        sides = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads, "o_proj": heads}
        sides |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.hidden + self.feed_forward)
        taken = [side for name, side in sides.items() if targets == "all_linear" or name in targets]
        return self.layers * rank * sum(taken)

    def kv_bytes_per_token(self, bytes_per_number: int) -> int:
        """Size of one token's keys and values over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * bytes_per_number


def _published(name: str, sizes: tuple[int, ...], is_tied: bool, **more: Any) -> Shape:
    return Shape(name, *sizes, is_tied=is_tied, **more)


# hidden, layers, heads, key-value heads, head size, feed-forward, vocabulary: from the models' config.json files.
PUBLISHED = {
    shape.name.lower(): shape
    for shape in (
        _published("SmolLM2-135M", (576, 30, 9, 3, 64, 1536, 49152), True, max_positions=8192),
        _published("Qwen2.5-0.5B", (896, 24, 14, 2, 64, 4864, 151936), True, has_qkv_bias=True, max_positions=32768),
        _published("Qwen2.5-1.5B", (1536, 28, 12, 2, 128, 8960, 151936), True, has_qkv_bias=True, max_positions=131072),
        _published(
            "Qwen2.5-Math-7B", (3584, 28, 28, 4, 128, 18944, 152064), False, has_qkv_bias=True, max_positions=4096
        ),
        _published("Qwen2.5-7B", (3584, 28, 28, 4, 128, 18944, 152064), False, has_qkv_bias=True, max_positions=131072),
        _published(
            "Qwen2.5-32B", (5120, 64, 40, 8, 128, 27648, 152064), False, has_qkv_bias=True, max_positions=131072
        ),
        _published("Qwen3-8B", (4096, 36, 32, 8, 128, 12288, 151936), False, has_head_norms=True, max_positions=32768),
        _published("Qwen3-32B", (5120, 64, 64, 8, 128, 25600, 151936), False, has_head_norms=True, max_positions=40960),
        _published("Llama-3.1-8B", (4096, 32, 32, 8, 128, 14336, 128256), False, max_positions=131072),
    )
}


def shape_of(base: Any, root: Path) -> Shape:
    """Returns the policy that section `base` makes. UserError says what to pass if its sizes need a download."""
    match base:
        case RandomBase():
            from stages.base.corpora import CORPORA
            from stages.engines.new_tokenizers import byte_level_tokenizer

            # vocabulary_size is an upper limit; training the tokenizer here takes a tenth of a second.
            tokenizer = byte_level_tokenizer(CORPORA[base.corpus](base.corpus_rows), base.vocabulary_size)
            config = {
                "hidden_size": base.hidden_size,
                "num_hidden_layers": base.layers,
                "num_attention_heads": base.heads,
                "intermediate_size": base.feed_forward_size,
                "vocab_size": tokenizer.get_vocab_size(),
                "max_position_embeddings": base.max_position_tokens,
                # As in `random_policy`: the embedding counts once.
                "tie_word_embeddings": True,
            }
            return replace(_shape("random Llama", config), is_untrained=True)
        case FolderBase(path=path):
            return read_config(root / path / "config.json")
        case HubBase(repository=repository, config=config):
            shape, positions = named_shape(repository.rpartition("/")[2]), (config or {}).get("max_position_embeddings")
            return replace(shape, max_positions=positions) if positions else shape
        case GgufPackageBase(member=member):
            return named_shape(Path(member).name)
    raise TypeError(f"{type(base)} is no section `base`")


def named_shape(name: str) -> Shape:
    """Returns the published configuration whose name begins `name` (so `Qwen2.5-32B-Instruct` is Qwen2.5-32B)."""
    found = [shape for key, shape in PUBLISHED.items() if name.lower().startswith(key)]
    if not found:
        known = ", ".join(shape.name for shape in PUBLISHED.values())
        raise UserError(
            f"the sizes of {name!r} are not known here: give its config.json (--config FILE), or one of {known} "
            "(--model)"
        )
    # More than one entry may be a prefix of the name. The longest is the most exact.
    return max(found, key=lambda shape: len(shape.name))


def read_config(path: Path) -> Shape:
    """Reads a transformers config.json. UserError when it is not a dense decoder of the Llama family."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no readable config.json ({error}): name one with --config FILE") from None
    if "num_experts" in config or "num_local_experts" in config or "n_routed_experts" in config:
        raise UserError(f"{path} is a mixture of experts: the formulas here are those of dense decoders")
    try:
        return _shape(config.get("_name_or_path") or path.parent.name, config)
    except KeyError as error:
        raise UserError(f"{path} has no {error.args[0]}: the formulas here are those of Llama-like decoders") from None


def _shape(name: str, config: Mapping[str, Any]) -> Shape:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Shape(
        name,
        hidden,
        config["num_hidden_layers"],
        heads,
        # A config.json without this key describes plain multi-head attention.
        config.get("num_key_value_heads") or heads,
        config.get("head_dim") or hidden // heads,
        config["intermediate_size"],
        config["vocab_size"],
        bool(config.get("tie_word_embeddings", False)),
        # Qwen2 has these biases, and Qwen3 normalises each head, although config.json has no key for it.
        has_qkv_bias=config.get("model_type") == "qwen2" or bool(config.get("attention_bias")),
        has_head_norms=config.get("model_type") == "qwen3",
        max_positions=config.get("max_position_embeddings", 0),
    )
