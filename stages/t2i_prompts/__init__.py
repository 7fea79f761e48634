"""Stage `t2i_prompts`: the prompts of the text-to-image branch, split, none of the test split among the others."""
