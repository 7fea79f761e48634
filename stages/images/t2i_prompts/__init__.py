"""Stage `t2i_prompts`: the prompts of the text-to-image branch, split, with no test prompt in another split."""
