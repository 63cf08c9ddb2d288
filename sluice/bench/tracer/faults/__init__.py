"""The faults of the benchmark, one module per topic; ``library`` lists all of them.

The docstring of a program describes the program with its fault, unless it says "with the fault".
"""
