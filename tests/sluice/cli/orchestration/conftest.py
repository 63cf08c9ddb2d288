"""The state that one run of the whole line leaves."""

from tests.pipelines.conftest import _green, echo, green  # noqa: F401  fixtures
