"""Stage `rl_round`: one round of reinforcement learning, from a named policy to the next.

run.py starts the loop, and loop/synchronous.py is its listing. The parts of a step, in order:

1. sampling: drawing.py picks problems, draws groups and fills the batch, for loop/batch_source.py
2. reward: `outcome_reward` in drawing.py, from a verdict of the rules or of a model (judging.py)
3. tensors: samples.py pads the batch, and plans which rank trains on which responses in which update
4. advantage: `with_advantages` in update.py; with `kind: gae` from the values of a critic, which learns in critic.py
5. loss: `policy_loss` in losses.py: `surrogate`, masks and weights (`select_tokens`), KL to the reference
6. update: `update_policy` in update.py; loop/training_step.py does 3 to 6 and makes the row of the curve
7. weight sync and checkpoint: loop/weight_sync.py; records of the round: loop/round_log.py and schedule.py

A reward, an advantage, a loss or a loop is chosen by its `kind`. Each kind is a class in methods.py or
update_methods.py, and a `case` in the function named above. params.py checks for settings that contradict it. round.py
and records.py hold the types that all parts share. The asynchronous loop (asynchronous/hub.py, decisions in
coordinator.py) and a replay (loop/replayed.py) share steps 2 to 6.
"""
