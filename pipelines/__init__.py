"""Runs, schedules and shows the graph of dvc.yaml: set-up, recipes, the Prefect flow, servers, command line."""
