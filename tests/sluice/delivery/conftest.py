from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.artifacts import ArtifactStore
from sluice.registry.rollouts import RolloutLedger
from tests.sluice.delivery.delivery_samples import two_versions
from tests.sluice.registry.ledger_samples import Clock


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture
def ledger(url: str, store: ArtifactStore) -> Iterator[RolloutLedger]:
    """Version 1 is in production, version 2 may follow it."""
    with RolloutLedger.open(url, clock=Clock()) as opened:
        two_versions(opened, store)
        yield opened
