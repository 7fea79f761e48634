"""What others may ask of stage `sft`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stages.foundations.about import About, Sections

if TYPE_CHECKING:
    from stages.foundations.planned_work import Lengths, Work


def _sections() -> dict[str, Any]:
    from stages.sft.params import SftParams

    return {"sft": SftParams}


def _work(sections: Sections, address: str, lengths: Lengths) -> Work:
    from stages.foundations.planned_work import Training, Work

    sft, demonstrate = sections["sft"], sections["demonstrate"]
    sequences, told = sft.steps * sft.batch_demonstrations, ()
    if address in lengths.trained:
        sequence = lengths.trained[address] / sequences
        told = (f"demonstration: {sequence:.0f} tokens ({lengths.sources['trained']})",)
    else:
        most = min(demonstrate.max_response_tokens, sft.max_sequence_tokens)
        sequence = min(lengths.prompt + lengths.response_share * most, float(sft.max_sequence_tokens))
    tokens = sequences * sequence
    validations = -(-sft.steps // sft.validate_every_steps)
    training = Training(
        tokens=tokens,
        response_tokens=tokens * max(0.0, 1 - lengths.prompt / sequence),
        forward_tokens=validations * demonstrate.validation_rows * sequence,
        context=sequence,
        longest=sft.max_sequence_tokens,
        updates=sft.steps,
        kind=sft.optimizer.kind,
    )
    return Work(training, taken_for_granted=told)


ABOUT = About(
    headline=("loss/validation_last", "validation loss {:.3f}"),
    sections=_sections,
    runs_model=lambda params: True,
    work=_work,
    named_after=("policy",),
    lane="Policies",
    has_funnel=True,
)
