"""A GGUF file as llama.cpp's converter writes it, packed into a wheel: a random Llama, quantised to 4 bits."""

from __future__ import annotations

import zipfile
from pathlib import Path

import gguf
import numpy
from tokenizers import pre_tokenizers

MEMBER = "tiny/model.gguf"


def write_gguf_wheel(path: Path) -> None:
    """Writes a wheel whose only file, `MEMBER`, is a policy with one layer and a token per byte."""
    hidden, heads, wide = 64, 2, 128
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", *alphabet, "ab"]
    file = path.with_suffix(".gguf")
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    square, up, down = (hidden, hidden), (wide, hidden), (hidden, wide)
    shapes = {f"blk.0.attn_{name}.weight": square for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate.weight": up, "blk.0.ffn_up.weight": up, "blk.0.ffn_down.weight": down}
    shapes |= {"token_embd.weight": (len(tokens), hidden)}
    draw = numpy.random.default_rng(0)
    four_bits = gguf.GGMLQuantizationType.Q4_1
    for name, shape in shapes.items():
        values = gguf.quants.quantize(draw.normal(0, 0.1, shape).astype(numpy.float32), four_bits)
        writer.add_tensor(name, values, raw_dtype=four_bits)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, numpy.ones(hidden, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, MEMBER)
    file.unlink()
