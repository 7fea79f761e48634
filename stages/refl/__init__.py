"""Stage `refl`: a generator learns from a reward model, or from preferred images, measured by what it did not."""
