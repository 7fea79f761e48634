"""An example of a custom reward: right and short answers. Try it with

retrace reward custom/brevity.py data/rollouts/rl_1.parquet
"""


def score(verdict, response_tokens, limit=100):
    """1 for a right response, plus up to 0.2 for a short one; each part has its curve."""
    is_right = verdict == "correct"
    return {"right": float(is_right), "short": 0.2 * max(0.0, 1 - response_tokens / limit) * is_right}
