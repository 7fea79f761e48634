"""Seconds per step of seven RL schedules, on a cluster that need not exist."""
