"""Retraining on new data: which data are new, their snapshot on a branch, the gate, and the champion policy."""
