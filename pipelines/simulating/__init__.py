"""`retrace simulate`: seconds a step of six schedules of RL on a cluster that one does not have."""
