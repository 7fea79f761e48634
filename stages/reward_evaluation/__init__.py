"""Stage `reward_evaluation`: how well the scorers agree with people on prompts that nobody has learnt from."""
