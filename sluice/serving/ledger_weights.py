"""The weights of a model as the ledger has them: its production pointer and its rollout.

What the pointer names is followed once the registry agrees about it. The check is repeated when
something changed, and at a bounded cadence, which also finds rows that were edited since.
"""

import time

from sluice.base.errors import RegistryUnsound, UnknownVersion
from sluice.registry.rollouts import CheckedWeights, RolloutLedger
from sluice.rollout.weights import Weights


class LedgerWeights:
    """Follows production and the rollout under way."""

    def __init__(self, ledger: RolloutLedger, model: str, *, recheck_s: float = 30.0) -> None:
        """Prepare; nothing is read yet.

        Args:
            ledger: Of the model.
            model: Its name.
            recheck_s: After this long the registry is checked again, though nothing changed [s].
        """
        self._ledger = ledger
        self._model = model
        self._recheck_s = recheck_s
        self._sound: str | None = None
        """Fingerprint of the state that was found sound; None before the first."""

        self._check_at = float("-inf")

    def read(self) -> Weights:
        """Return who answers now.

        Raises:
            UnknownVersion: Nothing is in production.
            RegistryUnsound: The registry contradicts itself about what serves.
            StorageError: The registry cannot be read.
        """
        now = time.monotonic()
        known = self._sound if now < self._check_at else None
        try:
            found = self._checked(known)
        except RegistryUnsound:
            self._sound = None
            raise
        if found.fingerprint != known:
            self._sound, self._check_at = found.fingerprint, now + self._recheck_s
        if found.weights is None:
            models = ", ".join(self._ledger.models()) or "none"
            raise UnknownVersion(
                f"A version of {self._model} is required in production, and there is none "
                f"(models in the registry: {models}).",
                cause="The pipeline did not run yet, or its gate promoted nothing.",
                fix=f"Run: sluice run {self._model}",
            )
        return found.weights

    def _checked(self, known: str | None) -> CheckedWeights:
        found = self._ledger.checked_weights(self._model, known=known)
        if found.weights is not None and not found.weights.secret:
            self._ledger.require_secret(self._model)
            found = self._ledger.checked_weights(self._model, known=known)
        return found
