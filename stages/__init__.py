"""The stages of the pipeline, the engines and algorithms that they run on, and their common foundations."""
