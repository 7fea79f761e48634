"""What every stage stands on: params, tables, metrics, files, seeds, attempts. Nothing here imports torch."""
