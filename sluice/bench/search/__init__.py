"""Measurements of a search: beside Ray Tune alone, and of its decisions at scale."""
