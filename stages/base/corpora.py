"""Training texts for the tokenizer of a random policy."""

from __future__ import annotations

import random

from stages.algorithms import arithmetic_tasks, digit_tasks
from stages.foundations.seeds import derive_seed


def _sums(rows: int) -> list[str]:
    """Returns generated problems with their worked steps, the same for every seed of the run."""
    rng = random.Random(derive_seed("tokenizer"))
    texts = []
    for problem in arithmetic_tasks.generate_problems(seed=derive_seed("tokenizer"), rows=rows):
        lines, answer = arithmetic_tasks.worked_steps(problem, rng, 0.0)
        worked = "\n".join(lines)
        texts.append(f"Q: {problem.problem}\nA: {worked}\nLet me check.\nThe answer is \\boxed{{{answer}}}.")
    return texts


def _digits(rows: int) -> list[str]:
    """Returns problems of all sizes, with solutions of each style in turn, the same for every seed of the run.

    All styles are equally common, so that no number that may occur is rare.
    """
    rng = random.Random(derive_seed("tokenizer"))
    # Does not depend on the run's seed: a policy's tokenizer, and so its size, are the same for every seed.
    sizes = dict.fromkeys(range(3, 9), 1.0)
    problems = digit_tasks.generate_problems(derive_seed("tokenizer"), rows, sizes, (2, 3, 4, 5), False)
    styles = list(digit_tasks.SolutionStyle)
    return [
        f"Q: {problem.problem}\nA: "
        + digit_tasks.write_solution(problem, rng, styles[number % len(styles)], 0.04, 0.2, 0.5)[0]
        for number, problem in enumerate(problems)
    ]


CORPORA = {"arithmetic": _sums, "digits": _digits}
"""Training texts for a tokenizer, by the name of the task family."""
