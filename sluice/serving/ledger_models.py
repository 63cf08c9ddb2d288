"""The models of one name in the registry, loaded by candidate digest."""

from sluice.artifacts import ArtifactStore
from sluice.digests import short
from sluice.errors import UnknownVersion
from sluice.registry.ledger import Ledger
from sluice.serving.deployed import Deployed, load_deployed


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
