"""What every stage is built on: params, tables, metrics, files, seeds, attempts. Nothing here imports torch."""
