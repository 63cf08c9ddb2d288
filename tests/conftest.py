"""What holds for every test: one thread a process, and what was counted is told at the end."""

import os

# Before torch, numpy and numba are loaded, and for every process that a test or xdist starts: with
# two threads each the small layers of the tests take half as long again, most of it spent waiting.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


collect_ignore = ["support/traced/script.py"]
"""Programs that run when they are imported, as those of users do."""


def pytest_terminal_summary(terminalreporter):
    """Print each ``record_property("told", text)`` of a test that passed."""
    told = [
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "told"
    ]
    if told:
        terminalreporter.section("counted")
        for line in told:
            terminalreporter.line(line)
