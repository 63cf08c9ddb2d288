"""Traces of the benchmark's programs."""

from tests.sluice.trace.conftest import _ignore_earlier_tests, trace_of  # noqa: F401  fixtures
