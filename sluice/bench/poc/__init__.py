"""Benchmark of the POC gate: planted defects, and healthy set-ups that must pass."""
