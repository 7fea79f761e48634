"""An example of an environment: the policy guesses a number. Play it with

retrace environment custom/guess_number.py
"""

import random
import re


class GuessNumber:
    def __init__(self, problem, seed, highest=100, most=7):
        # Every response plays its own game, and the same seed plays the same game again.
        self.secret = random.Random(seed).randint(1, highest)
        self.highest, self.most, self.guesses = highest, most, 0

    def reset(self):
        return f"My number lies between 1 and {self.highest}. You have {self.most} guesses."

    def step(self, turn):
        self.guesses += 1
        numbers = re.findall(r"\d{1,9}", turn)
        guess = int(numbers[-1]) if numbers else None
        if guess == self.secret:
            return {"reward": 1.0, "is_correct": True}
        if self.guesses == self.most:
            return {"reward": 0.0, "is_correct": False}
        if guess is None:
            return "error: write a number"
        return "higher" if guess < self.secret else "lower"
