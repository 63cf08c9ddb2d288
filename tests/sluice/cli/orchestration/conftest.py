"""Fixtures of the pipeline tests: settings, and the state after one run of the whole line."""

from tests.pipelines.conftest import _green, echo, green  # noqa: F401  fixtures
