"""Generators, scorers and pictures of the text-to-image branch."""
