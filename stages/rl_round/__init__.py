"""Stage `rl_round`: one round of reinforcement learning, from a named policy to the next."""
