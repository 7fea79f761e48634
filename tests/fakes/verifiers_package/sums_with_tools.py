"""A small environment in the form of verifiers 0.3: a tool that multiplies, and one row with a hint in its `info`."""

import random

import verifiers.legacy as vf
from datasets import Dataset


def load_environment(is_random: bool = False):
    def calculate(a: int, b: int) -> int:
        """The product of two numbers."""
        return random.randrange(10**9) if is_random else a * b

    async def is_right(completion, answer, info) -> float:
        return 1.0 if completion[-1].content.strip() == answer else info.get("for_trying", 0.0)

    rows = Dataset.from_list([{"question": "473+28*36", "answer": "1481", "info": {"for_trying": 0.25}}])
    rubric = vf.Rubric(funcs=[is_right])
    return vf.ToolEnv(tools=[calculate], dataset=rows, rubric=rubric, max_turns=6, system_prompt="Be brief.")
