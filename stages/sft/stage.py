"""Parameters and paths of stage `sft`, and its description for other modules."""

from __future__ import annotations

from pydantic import Field

from stages.engines.trainers.params import AdapterParams, TrainerParams, TrainingParams, adapter_contradictions
from stages.foundations.params import PromptParams
from stages.foundations.stage import About, Lengths, Sections, Stage, Training, Work


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


def _work(sections: Sections, address: str, lengths: Lengths) -> Work:
    sft, demonstrate = sections["sft"], sections["demonstrate"]
    sequences, assumed = sft.steps * sft.batch_demonstrations, ()
    if address in lengths.trained:
        sequence = lengths.trained[address] / sequences
        assumed = (f"demonstration: {sequence:.0f} tokens ({lengths.sources['trained']})",)
    else:
        most = min(demonstrate.max_response_tokens, sft.max_sequence_tokens)
        sequence = min(lengths.prompt + lengths.response_share * most, float(sft.max_sequence_tokens))
    tokens = sequences * sequence
    # Rounded up: the last step is validated as well.
    validations = -(-sft.steps // sft.validate_every_steps)
    training = Training(
        tokens=tokens,
        response_tokens=tokens * max(0.0, 1 - lengths.prompt / sequence),
        forward_tokens=validations * demonstrate.validation_rows * sequence,
        context=sequence,
        longest=sft.max_sequence_tokens,
        updates=sft.steps,
        kind=sft.optimizer.kind,
        adapter=sft.adapter,
    )
    return Work(training, taken_for_granted=assumed)


def _contradictions(sections: Sections) -> list[str]:
    sft = sections["sft"]
    return [*adapter_contradictions("sft", sft.adapter, sft.optimizer, sections["trainer"])]


ABOUT = About(
    description='Supervised fine-tuning, base policy -> policy "sft".',
    plot=("loss/train", "Supervised fine-tuning"),
    headline=("loss/validation_last", "validation loss {:.3f}"),
    contradictions=_contradictions,
    runs_model=lambda params: True,
    work=_work,
    named_after=("policy",),
    lane="Policies",
    has_funnel=True,
)
