"""The models of one name in the registry, loaded by candidate digest."""

from datetime import UTC, datetime
from pathlib import Path

from sluice.artifacts import ArtifactStore
from sluice.digests import short
from sluice.errors import UnknownVersion
from sluice.registry.ledger import Ledger
from sluice.serving.deployed import Deployed, load_deployed
from sluice.serving.frames import Recipe


class LedgerModels:
    """Loads what the weights name."""

    def __init__(self, ledger: Ledger, model: str, store: ArtifactStore) -> None:
        self._ledger = ledger
        self._model = model
        self._store = store

    def load(self, candidate: str) -> Deployed:
        """Return the model of a candidate digest.

        Raises:
            UnknownVersion: The registry has no such candidate.
            StorageError: The registry cannot be read, or weights are missing or changed.
            ContractError: See ``load_deployed``.
        """
        version = self._ledger.version_of(self._model, candidate)
        if version is None:
            raise UnknownVersion(
                f"The candidate {short(candidate)} must be a version of {self._model}, and is "
                "none.",
                fix=f"See: sluice registry list {self._model}",
            )
        return load_deployed(version, self._store)


def ledger_recipe(registry_url: str, model: str, artifacts: Path) -> Recipe:
    """Return how another process loads what ``LedgerModels`` loads in this one.

    Args:
        registry_url: SQLAlchemy URL.
        model: Its name.
        artifacts: Folder of the store.
    """
    return Recipe(
        load=f"{__name__}:load_from_ledger",
        arguments={"registry_url": registry_url, "model": model, "artifacts": str(artifacts)},
    )


def load_from_ledger(candidate: str, *, registry_url: str, model: str, artifacts: str) -> Deployed:
    """Return the model of a candidate digest, as ``LedgerModels.load``."""
    with Ledger.open(registry_url, clock=lambda: datetime.now(UTC), create=False) as ledger:
        return LedgerModels(ledger, model, ArtifactStore(Path(artifacts))).load(candidate)
