"""One module for each group of faults; ``library`` lists them all."""
