"""The basis of every stage: params, tables, metrics, files, seeds, attempts. Nothing here imports torch."""
