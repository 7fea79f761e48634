"""Prepares collected problems for training and evaluation: normalised, gradable, unique, without benchmark problems."""
