"""What stage `base` runs with, and what others may ask of it."""

from __future__ import annotations

from pathlib import Path

from stages.base.params import BaseParams
from stages.foundations.planned_work import ModelSizes
from stages.foundations.stage import About, Sections, Stage

STAGE = Stage(
    sections={"seed": int, "base": BaseParams},
    outputs={"policy": "data/policies/base", "metrics": "data/metrics/base.json"},
    quick_imports=True,
)


def _model(sections: Sections) -> ModelSizes:
    from stages.base.params import FolderBase, GgufPackageBase, HubBase, RandomBase

    match sections["base"]:
        case RandomBase() as base:
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
                "tie_word_embeddings": True,
            }
            return ModelSizes("random Llama", config, is_untrained=True, policy="base")
        case FolderBase(path=path):
            return ModelSizes(path, Path(path, "config.json"), policy="base")
        case HubBase(repository=repository):
            return ModelSizes(repository.rpartition("/")[2], policy="base")
        case GgufPackageBase(member=member):
            return ModelSizes(Path(member).name, policy="base")


ABOUT = About(
    description="The policy that everything starts from.",
    headline=("policy/parameters", "{:,.0f} parameters"),
    model=_model,
    raw=lambda params: [params.get("base")],
    named_after=("policy",),
    lane="Policies",
)
