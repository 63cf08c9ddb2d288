"""One thread a process: the processes side by side already fill the cores."""

import os

# Before torch, numpy and numba are loaded, and for every process that a test or xdist starts: with
# two threads each the small layers of the tests take half as long again, most of it spent waiting.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
