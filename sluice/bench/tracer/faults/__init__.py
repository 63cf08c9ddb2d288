"""The faults of the benchmark, one module per topic; ``library`` lists all."""
