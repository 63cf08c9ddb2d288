"""The traffic split of a model in the ledger: its production pointer and its rollout.

The pointer is followed once the registry is consistent about it. That check is repeated after
each change and at a fixed interval, which also finds rows that were edited since.
"""

import time

from sluice.base.errors import RegistryInconsistent, UnknownVersion
from sluice.registry.rollouts import RolloutLedger, VerifiedTrafficSplit
from sluice.rollout.traffic_split import TrafficSplit


class LedgerTrafficSplit:
    """Reads the split from the production pointer and the rollout in progress."""

    def __init__(
        self, ledger: RolloutLedger, model: str, *, registry_check_interval_s: float = 30.0
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            ledger: Registry of the model.
            model: Name of the model.
            registry_check_interval_s: The registry is checked again after this time, even
                without a change [s].
        """
        self._ledger = ledger
        self._model = model
        self._recheck_s = registry_check_interval_s
        self._sound: str | None = None
        """Fingerprint of the last consistent state; None before the first."""

        self._check_at = float("-inf")

    def read(self) -> TrafficSplit:
        """Return the present split.

        Raises:
            UnknownVersion: No version is in production.
            RegistryInconsistent: The registry is inconsistent about what to serve.
            StorageError: The registry cannot be read.
        """
        now = time.monotonic()
        known = self._sound if now < self._check_at else None
        try:
            found = self._checked(known)
        except RegistryInconsistent:
            self._sound = None
            raise
        if found.fingerprint != known:
            self._sound, self._check_at = found.fingerprint, now + self._recheck_s
        if found.split is None:
            models = ", ".join(self._ledger.models()) or "none"
            raise UnknownVersion(
                f"{self._model} needs a version in production, but has none "
                f"(models in the registry: {models}).",
                cause="The pipeline did not run yet, or its gate promoted no version.",
                fix=f"Run: sluice run {self._model}",
            )
        return found.split

    def _checked(self, known: str | None) -> VerifiedTrafficSplit:
        found = self._ledger.checked_traffic_split(self._model, known=known)
        if found.split is not None and not found.split.secret:
            self._ledger.ensure_secret(self._model)
            found = self._ledger.checked_traffic_split(self._model, known=known)
        return found
