"""Retraining on new data: what is new, a snapshot of it on a branch, the gate, and which policy is the champion."""
