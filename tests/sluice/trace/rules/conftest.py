import pytest

from sluice.trace import fast_path


@pytest.fixture
def early_fast_path(monkeypatch):
    """Predict a step pattern after 8 repetitions instead of 256."""
    monkeypatch.setattr(fast_path, "_MIN_REPEATS", 8)
