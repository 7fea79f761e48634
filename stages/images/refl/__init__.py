"""Stage `refl`: a generator learns from a reward model or preferred images, and is measured by another score."""
