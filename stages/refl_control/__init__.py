"""Stage `refl_control`: a round beside one that trained as long without a reward."""
