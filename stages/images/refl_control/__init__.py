"""Stage `refl_control`: compares a round with one that trained as long without a reward."""
