"""Benchmarks of searches: comparisons with plain Ray Tune, and the cost of decisions at scale."""
