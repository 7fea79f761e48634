"""The round's verifier when it is a model: the starting policy, fine-tuned to judge if configured, next to the rules.

Here the verdicts of the rules never affect a reward. The choice exists because a judge can be wrong, so every row of
the curve says how often judge and rules agree.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.pieces import are_whole, remove_piece, seal
from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack, split_by_tokens
from stages.engines.policies.tokenizers import encode_prompt, encode_response, load_tokenizer
from stages.engines.replicas.build import build_sampler
from stages.engines.trainers.params import AdamwParams, TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.engines.turns import without_turns
from stages.engines.verifier.model_judge import DIFFERENT, NO_JUDGEMENT, SAME, ModelJudge, WordJudge, same_request
from stages.engines.verifier.verifier import Judgement, Verifier, thought_markers
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder
from stages.foundations.params import ChatPrompt, PlainPrompt
from stages.foundations.seeds import derive_seed
from stages.observe.progress import progress
from stages.rl_round.methods import LikelierWord, MadePairs, ModelVerifier, WrittenJudgement
from stages.rl_round.round import Round

EVALUATION_PAIRS = 256
"""Pairs of an evaluation: the standard error of a share is then at most about 3 percentage points."""
MAX_GRADIENT_NORM = 1.0
"""From section `rl` of the laptop recipe, like the moments of AdamW below."""
TAUGHT = "judge"
"""Name of the folder, in the scratch folder, of the policy that was fine-tuned to judge."""


class CheckedJudge:
    """A judge whose judgements count, and the rules that it is compared with; the caller closes both."""

    def __init__(self, judge: ModelJudge | WordJudge, rules: Verifier) -> None:
        self._judge, self._rules = judge, rules
        self._pairs: list[tuple[Verdict, Verdict]] = []

    def judge(
        self, pairs: Sequence[tuple[str, str]], truncated: Sequence[bool] | None = None, require_marker: bool = False
    ) -> list[Judgement]:
        """Returns the judge's judgements; `crashed` where it wrote none: the judge failed, not the response."""
        judged = [_mark_judge_failures(one) for one in self._judge.judge(pairs, truncated, require_marker)]
        ruled = self._rules.judge(pairs, truncated, require_marker)
        # Keeps both verdicts even when they agree: the curve shows shares of all responses that both have decided.
        self._pairs += [(one.verdict, other.verdict) for one, other in zip(judged, ruled, strict=True)]
        return judged

    def pop_judged(self) -> list[tuple[Verdict, Verdict]]:
        """Returns the judge's and the rules' verdicts since the last call."""
        pairs, self._pairs = self._pairs, []
        return pairs


def _mark_judge_failures(judgement: Judgement) -> Judgement:
    if judgement.reason != NO_JUDGEMENT:
        return judgement
    return Judgement(Verdict.CRASHED, judgement.extracted, judgement.path, judgement.reason)


@contextmanager
def open_judge(this_round: Round, rules: Verifier) -> Iterator[tuple[CheckedJudge, dict[str, float]]]:
    """Yields a judge made from the policy that the round starts from, and metrics of how well it judges.

    The fine-tuned judge is deleted when the block ends without an error. UserError when the judge needs fine-tuning and
    the trainer runs in more than one process.
    """
    params, trainer, prompt = this_round.params.verifier, this_round.trainer_params, this_round.prompt
    policy, answers = this_round.paths.policy, [problem.answer for problem in this_round.problems]
    seed_path = this_round.seed, this_round.name
    if isinstance(params.teaching, MadePairs):
        if not isinstance(trainer, TorchTrainerParams):
            raise UserError(
                f"rl.verifier.teaching.kind made_pairs trains in one process, and trainer.kind is {trainer.kind}: set "
                "trainer.kind torch, or teaching.kind none"
            )
        policy = taught_judge(params.teaching, trainer, prompt, policy, answers, this_round.scratch, *seed_path)
    with build_judge(this_round, params, policy, derive_seed(*seed_path, "judge")) as judge:
        yield CheckedJudge(judge, rules), evaluate_judge(judge, answers, *seed_path)
    # Not in a `finally`: a round that was stopped resumes with the same judge.
    remove_piece(this_round.scratch / TAUGHT)


def build_judge(this_round: Round, params: ModelVerifier, policy: Path, seed: int) -> ModelJudge | WordJudge:
    prompt = this_round.prompt
    held = build_sampler(this_round.sampler_params, policy, prompt=without_turns(prompt))
    tokenizer, markers = load_tokenizer(policy), thought_markers(this_round.verifier_params)
    match params.reading:
        case WrittenJudgement(max_tokens=max_tokens):
            return ModelJudge(held, tokenizer, prompt, seed, max_tokens)
        case LikelierWord(undecided_margin=margin):
            return WordJudge(held, tokenizer, prompt, margin, markers)


def made_pairs(answers: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    """Returns pairs of answers, every second one of equal answers; all different answers are equally likely.

    UserError when there is only one answer.
    """
    # Each answer once, so that a common answer is no likelier than others. Sorted, because the order of a set differs
    # between processes.
    different = sorted(set(answers))
    if len(different) < 2:
        raise UserError(
            f"rl.verifier.teaching.kind made_pairs needs two different answers, and the problems have "
            f"{len(different)}: set teaching.kind none, or more problems"
        )
    rng = random.Random(seed)
    # Draws two answers even for an equal pair, so the random numbers of the others do not depend on which are equal.
    pairs = (rng.sample(different, 2) for _ in range(count))
    return [(gold, gold if number % 2 else other) for number, (gold, other) in enumerate(pairs)]


def taught_judge(
    teaching: MadePairs,
    trainer_params: TorchTrainerParams,
    prompt: PlainPrompt | ChatPrompt,
    policy: Path,
    answers: Sequence[str],
    scratch: Path,
    *seed_path: int | str,
) -> Path:
    """Fine-tunes the policy to judge and returns its folder under `scratch`; a resumed run uses it from there."""
    folder = scratch / TAUGHT
    if are_whole(folder):
        return folder
    # Steps and learning rate are from the recipe (`teaching`); the rest is as in section `rl` of the laptop recipe.
    adamw = AdamwParams(kind="adamw", learning_rate=teaching.learning_rate, beta1=0.9, beta2=0.95, weight_decay=0.0)
    tokenizer, model = load_tokenizer(policy), language_model(policy, trainer_params)
    with closing(TorchTrainer(trainer_params, adamw, MAX_GRADIENT_NORM, model)) as trainer:
        for step in progress(range(teaching.steps), teaching.steps, f"{seed_path[-1]}: judge", "steps"):
            pairs = made_pairs(answers, teaching.pairs_per_step, derive_seed(*seed_path, "judge", step))
            lessons = [_lesson(tokenizer, prompt, pair) for pair in pairs]
            groups = split_by_tokens([one.tokens for one in lessons], trainer_params.micro_batch_tokens)
            # The loss is a mean over the step's tokens: each micro-batch is divided by their number, and the parts add
            # up.
            tokens = sum(len(one.response) for one in lessons)
            batches = [pack([lessons[index] for index in group]) for group in groups]
            trainer.update(batches, lambda outputs, _, count=tokens: (-outputs.logprobs.sum() / count, {}), 1.0)
        with replace_folder(folder) as beside:
            trainer.save_model(beside)
        seal(folder)
    return folder


def _lesson(tokenizer, prompt: PlainPrompt | ChatPrompt, pair: tuple[str, str]) -> TokenSequence:
    gold, prediction = pair
    word = SAME if gold == prediction else DIFFERENT
    request = encode_prompt(tokenizer, prompt, same_request(gold, prediction))
    return TokenSequence(request, encode_response(tokenizer, word))


def evaluate_judge(judge: ModelJudge | WordJudge, answers: Sequence[str], *seed_path: int | str) -> dict[str, float]:
    """Returns how well the judge does on new pairs, half of them equal: shares judged right and left undecided.

    Empty when all answers are equal.
    """
    if len(set(answers)) < 2:
        return {}
    pairs = made_pairs(answers, EVALUATION_PAIRS, derive_seed(*seed_path, "judge", "examined"))
    # Boxed, so that rules which extract the prediction always succeed, and only the judge is evaluated.
    judged = judge.judge([(gold, f"The answer is \\boxed{{{prediction}}}.") for gold, prediction in pairs])
    right = [
        one.verdict is (Verdict.CORRECT if gold == prediction else Verdict.WRONG)
        for one, (gold, prediction) in zip(judged, pairs, strict=True)
    ]
    return {
        "judge/right_fraction": sum(right) / len(right),
        "judge/undecided_fraction": sum(_mark_judge_failures(one).verdict.is_failure for one in judged) / len(judged),
    }
