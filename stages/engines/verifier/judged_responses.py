"""Samples responses from a policy and judges them, on all ranks and in pieces, so that an interrupted run resumes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.pieces import are_whole, seal
from stages.engines.policies.tokenizers import decode_response, encode_prompt, load_tokenizer
from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.build import drawing_share
from stages.engines.samplers.episodes import judged_text
from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import SamplingSettings, sample_prompts
from stages.engines.turns import problem_columns, problem_texts, turn_messages
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Judgement, Verifier, overruled
from stages.foundations.errors import UserError
from stages.foundations.files import stable_hash, write_json
from stages.foundations.job import Attempt
from stages.foundations.params import ChatPrompt, PlainPrompt, PromptParams, load_section

if TYPE_CHECKING:
    from stages.engines.trainers.protocol import Ranks

RESPONSES_AT_ONCE = 16384
"""Responses of one piece: about two thousand for each of eight GPUs, so that waiting for the longest costs little."""
SECTIONS = ("prompt", "sampler", "verifier")
"""Sections that affect the responses besides the stage's section."""


@dataclass(frozen=True)
class Drawing:
    """What to sample for each problem: see `sample_prompts`."""

    samples: int
    settings: SamplingSettings
    seed_path: tuple[int | str, ...]
    label: str


@dataclass(frozen=True)
class JudgedResponse:
    text: str
    tokens: int
    is_truncated: bool
    judgement: Judgement
    messages: list[dict[str, str]] | None = None
    """The problem and the turns of policy and environment; None without an environment."""


def judged_responses(
    problems: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    drawing: Drawing,
    params_path: Path,
    policy: Path,
    attempt: Attempt,
    ranks: Ranks,
    prompt: PlainPrompt | ChatPrompt | None = None,
    require_marker: bool = True,
) -> list[list[JudgedResponse]]:
    """Returns judged responses to each problem (`problem`, `answer`; one of `names` seeds it), on every rank.

    `prompt` replaces the section of that name; `require_marker` is that of the verifier.

    All ranks pass the same arguments. Rank 0 writes each piece into the attempt's `pieces`. Raises UserError if the
    verifier failed on more than `verifier.abort_undecided_fraction` of the responses.
    """
    section_prompt, sampler_params, verifier_params = (
        load_section(params_path, name, model)
        for name, model in zip(SECTIONS, (PromptParams, SamplerParams, VerifierParams), strict=True)
    )
    prompt = prompt or section_prompt
    share, tokenizer = drawing_share(sampler_params, ranks), load_tokenizer(policy)
    messages = turn_messages(prompt, tokenizer, policy)
    judged: list[list[JudgedResponse]] = []
    with (
        closing(build_sampler(sampler_params, policy, prompt=prompt)) as sampler,
        Verifier(verifier_params) as verifier,
    ):

        def judge(rows: Sequence[Mapping[str, Any]], of_rows: Sequence[str]) -> list[list[JudgedResponse]]:
            texts = problem_texts(prompt, rows)
            prompts = [encode_prompt(tokenizer, prompt, text) for text in texts]
            drawn = sample_prompts(
                sampler,
                prompts,
                of_rows,
                drawing.samples,
                drawing.settings,
                *drawing.seed_path,
                label=drawing.label,
                problems=[problem_columns(prompt, row) for row in rows],
            )
            flat = [
                (row["answer"], decode_response(tokenizer, sample.token_ids), sample, messages(problem, sample))
                for row, problem, samples in zip(rows, texts, drawn, strict=True)
                for sample in samples
            ]
            pairs = [(gold, judged_text(sample, text)) for gold, text, sample, _ in flat]
            truncated = [sample.is_truncated for *_, sample, _ in flat]
            judgements = verifier.judge(pairs, truncated, require_marker=require_marker)
            made = [
                JudgedResponse(
                    text, sample.policy_tokens, sample.is_truncated, overruled(judgement, sample.episode), turns
                )
                for (_, text, sample, turns), judgement in zip(flat, judgements, strict=True)
            ]
            return [made[start : start + drawing.samples] for start in range(0, len(made), drawing.samples)]

        at_once = max(1, RESPONSES_AT_ONCE // drawing.samples)
        for start in range(0, len(problems), at_once):
            rows, of_rows = problems[start : start + at_once], names[start : start + at_once]
            # The file name depends on the request, so a run with another seed or other problems never reads this piece.
            key = stable_hash([dataclasses.asdict(drawing), list(of_rows)])
            place = attempt.pieces / f"judged-{key[:16]}.json"
            # Only rank 0 reads the disk: ranks that disagreed about an existing piece would wait for each other.
            piece = ranks.broadcast(_read(place) if ranks.rank == 0 and are_whole(place) else None)
            if piece is None:
                piece = share.everywhere(judge(share.of(rows), share.of(of_rows)), len(rows))
                if ranks.rank == 0:
                    write_json(place, [[dataclasses.asdict(one) for one in of_row] for of_row in piece])
                    # The seal comes last: a killed run may leave a file without a seal, which counts as missing.
                    seal(place)
            judged += piece
    _refuse_failures(judged, attempt.stage, verifier_params)
    return judged


def _read(place: Path) -> list[list[JudgedResponse]]:
    def response(held: dict[str, Any]) -> JudgedResponse:
        said = held["judgement"]
        return JudgedResponse(**{**held, "judgement": Judgement(**{**said, "verdict": Verdict(said["verdict"])})})

    return [[response(held) for held in of_row] for of_row in json.loads(place.read_text(encoding="utf-8"))]


def _refuse_failures(judged: list[list[JudgedResponse]], stage: str, params: VerifierParams) -> None:
    verdicts = [one.judgement.verdict for of_problem in judged for one in of_problem]
    failures = sum(verdict.is_failure for verdict in verdicts)
    if failures > params.abort_undecided_fraction * len(verdicts):
        raise UserError(
            f"{stage}: the verifier failed on {failures} of {len(verdicts)} responses: "
            "raise verifier.timeout_seconds or verifier.memory_mib"
        )
