"""Parameters and paths of stage `sft`, and its description for other modules."""

from __future__ import annotations

from pydantic import Field

from stages.engines.trainers.params import AdapterParams, TrainerParams, TrainingParams, adapter_contradictions
from stages.foundations.params import PromptParams
from stages.foundations.stage import About, Sections, Stage


class SftParams(TrainingParams):
    """Section `sft`."""

    batch_demonstrations: int = Field(ge=1)
    """Demonstrations per update, over all ranks."""
    max_sequence_tokens: int = Field(ge=8)
    """Prompt and response tokens; a longer demonstration is dropped and counted. Also the length of a packed row."""
    adapter: AdapterParams = None


STAGE = Stage(
    sections={"seed": int, "prompt": PromptParams, "trainer": TrainerParams, "sft": SftParams},
    inputs={
        "policy": "data/policies/base",
        "train": "data/demonstrations/train.parquet",
        "validation": "data/demonstrations/validation.parquet",
    },
    outputs={
        "out": "data/policies/sft",
        "dropped": "data/dropped/sft.parquet",
        "curves": "data/curves/sft.csv",
        "metrics": "data/metrics/sft.json",
        "headline": "data/headline/sft.json",
    },
    is_launched=True,
    depends_on_ranks=True,
    quick_imports=True,
)


def _contradictions(sections: Sections) -> list[str]:
    sft = sections["sft"]
    return [*adapter_contradictions("sft", sft.adapter, sft.optimizer, sections["trainer"])]


ABOUT = About(
    description='Supervised fine-tuning, base policy -> policy "sft".',
    plot=("loss/train", "Supervised fine-tuning"),
    headline=("loss/validation_last", "validation loss {:.3f}"),
    contradictions=_contradictions,
    runs_model=lambda params: True,
    named_after=("policy",),
)
