"""Fixtures: a registry with a version in production and another one that may replace it."""

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.rollouts import RolloutLedger
from tests.sluice.registry.ledger_samples import NOW, Clock
from tests.sluice.rollout_control.controller_samples import register_two_versions


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a registry with version 1 in production and verdict PROMOTE on version 2."""
    folder = tmp_path_factory.mktemp("template")
    with RolloutLedger.open(f"sqlite:///{folder / 'registry.db'}", clock=Clock()) as opened:
        register_two_versions(opened, ArtifactStore(folder / "artifacts"))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture
def ledger(url: str, template: Path, tmp_path: Path) -> Iterator[RolloutLedger]:
    """A ledger on a copy of the template registry."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    with RolloutLedger.open(url, clock=Clock(NOW + timedelta(minutes=1))) as opened:
        yield opened
