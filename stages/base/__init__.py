"""Stage `base`: the policy from which all training starts, as a policy folder."""
