"""Makes collected problems fit to train and to measure on: normalised, gradable, unique, free of the benchmarks."""
