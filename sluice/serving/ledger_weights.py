"""The weights of a model without a rollout: all traffic to what the registry has in production."""

from sluice.errors import UnknownVersion
from sluice.registry.ledger import Ledger
from sluice.serving.weights import Weights


class ProductionWeights:
    """Follows the production pointer; its revision is the epoch."""

    def __init__(self, ledger: Ledger, model: str) -> None:
        self._ledger = ledger
        self._model = model

    def read(self) -> Weights:
        """Return all traffic to production.

        Raises:
            UnknownVersion: Nothing is in production.
            StorageError: The registry cannot be read.
        """
        pointer = self._ledger.production_pointer(self._model)
        if pointer.version is None:
            known = ", ".join(self._ledger.models()) or "none"
            raise UnknownVersion(
                f"A version of {self._model} is required in production, and there is none "
                f"(models in the registry: {known}).",
                cause="The pipeline did not run yet, or its gate promoted nothing.",
                fix=f"Run: sluice run {self._model}",
            )
        version = self._ledger.version(self._model, pointer.version)
        return Weights(epoch=pointer.revision, production=version.candidate)
