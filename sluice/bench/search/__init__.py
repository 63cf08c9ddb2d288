"""Benchmarks of searches: beside plain Ray Tune, and of decisions at scale."""
