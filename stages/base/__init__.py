"""Stage `base`: the policy that everything starts from, as a policy folder."""
