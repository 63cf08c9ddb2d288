import pytest

from sluice.trace.prediction import step_patterns


@pytest.fixture
def early_fast_path(monkeypatch):
    """Predict a step pattern after 8 repetitions instead of 256."""
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 8)
