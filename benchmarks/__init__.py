"""Measurements on a real GPU. `python -m benchmarks.NAME` prints a table and stores it under `benchmarks/results/`."""
