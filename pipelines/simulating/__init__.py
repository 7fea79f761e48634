"""`retrace simulate`: seconds per step of six RL schedules, on a cluster that need not exist."""
