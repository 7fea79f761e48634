"""The text-to-image branch: twelve stages, with the algorithms and engines that only they use.

Nothing outside imports it but the table of stages and the command `retrace annotate`. docs/explanation/text-to-image.md
explains it. In order: prompts (t2i_prompts), a generator (t2i_base, generate), pictures of people's own (image_pool),
rankings (annotate, preferences), a scorer and a reward model (scorer_base, reward_model, reward_evaluation), feedback
on the generator (refl, refl_control), and a page (t2i_report).
"""
