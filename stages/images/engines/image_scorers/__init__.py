"""Picture scorers in the shape of BLIP: scoring, folders, released weights, learning captions and preferences."""
