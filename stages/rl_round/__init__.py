"""Stage `rl_round`: one round of reinforcement learning, from a named policy to the next.

run.py starts the loop, and loop/synchronous.py is its listing. The parts of a step, in order:

1. drawing.py: problems, their responses, the rewards of these, groups, and the batch (for loop/batch_source.py). The
   reward is `outcome_reward`, from a verdict of the rules or of a model (judging.py)
2. samples.py: each rank's share of the batch as padded tensors, log-probs (`prepare_samples`), and advantages
   (`with_advantages`); with `kind: gae` from the values of a critic
3. update.py: the loss (`policy_loss`: `surrogate`, masks and weights, KL to the reference), the optimizer's updates
   (`update_policy`), and their diagnostics
4. loop/training_step.py: `train_step` does 2 and 3 and makes the row of the curve; learners.py builds what learns
5. weight sync and checkpoint: loop/weight_sync.py; records of the round: loop/round_log.py and schedule.py

A reward, an advantage, a loss or a loop is chosen by its `kind`. Each kind is a class in methods.py or
update_methods.py, and a `case` in the function named above (of advantages, in `_outcomes`). params.py checks for
settings that contradict it. round.py and records.py hold the types that all parts share. The asynchronous loop
(asynchronous/hub.py, decisions in coordinator.py) and a replay (loop/replayed.py) share the rewards and steps 2 to 4.
"""
