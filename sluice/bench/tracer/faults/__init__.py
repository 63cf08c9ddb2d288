"""The faults of the benchmark, one module per topic; ``library`` lists all.

The docstring of a program describes it with its fault.
"""
