"""What every stage stands on: params, tables, metrics, files, seeds, tracking. Nothing here imports torch."""
