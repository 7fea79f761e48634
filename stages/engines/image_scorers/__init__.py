"""Scorers of pictures, BLIP-shaped: scoring, folders, released weights, learning captions and preferences."""
