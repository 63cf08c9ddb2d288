"""Traces of the benchmark's programs."""

from tests.sluice.trace.conftest import _only_what_is_new, trace_of  # noqa: F401  fixtures
