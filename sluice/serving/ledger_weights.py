"""The weights of a model as the ledger has them: its production pointer and its rollout."""

from sluice.errors import UnknownVersion
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.weights import Weights


class LedgerWeights:
    """Follows production and the rollout under way."""

    def __init__(self, ledger: RolloutLedger, model: str) -> None:
        self._ledger = ledger
        self._model = model

    def read(self) -> Weights:
        """Return who answers now.

        Raises:
            UnknownVersion: Nothing is in production.
            StorageError: The registry cannot be read, or was changed past the ledger.
        """
        found = self._ledger.weights(self._model)
        if found is not None and not found.secret:
            self._ledger.require_secret(self._model)
            found = self._ledger.weights(self._model)
        if found is None:
            known = ", ".join(self._ledger.models()) or "none"
            raise UnknownVersion(
                f"A version of {self._model} is required in production, and there is none "
                f"(models in the registry: {known}).",
                cause="The pipeline did not run yet, or its gate promoted nothing.",
                fix=f"Run: sluice run {self._model}",
            )
        return found
