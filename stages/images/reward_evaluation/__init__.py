"""Stage `reward_evaluation`: how well the scorers agree with people on held-out prompts."""
