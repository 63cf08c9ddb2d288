"""Reads the traffic split of a model from the ledger: its production pointer and its rollout.

A split is returned only if the registry is consistent about it. Consistency is checked after each
change, and at a fixed interval to detect rows that were edited without a change of the split.
"""

import functools
import time

from sluice.base.errors import RegistryInconsistent, UnknownVersion
from sluice.registry.rollouts import RolloutLedger, VerifiedTrafficSplit
from sluice.rollout.traffic_split import TrafficSplit


class LedgerTrafficSplit:
    """Source of a model's traffic split: reads production pointer and rollout from the ledger."""

    def __init__(
        self, ledger: RolloutLedger, model: str, *, registry_check_interval_s: float = 30.0
    ) -> None:
        """Store the arguments; ``read`` reads the registry.

        Args:
            ledger: Registry of the model.
            model: Name of the model.
            registry_check_interval_s: Time after which the consistency of the registry is
                checked again, even without a change [s].
        """
        self._ledger = ledger
        self._model = model
        self._check_interval_s = registry_check_interval_s
        self._consistent_fingerprint: str | None = None
        """Fingerprint of the last consistent state; None before a check or after a failed check."""

        self._next_check_at = float("-inf")

    def read(self) -> TrafficSplit:
        """Return the current split.

        Raises:
            UnknownVersion: No version is in production.
            RegistryInconsistent: The registry is inconsistent about what to serve.
            StorageError: The registry cannot be read.
        """
        now = time.monotonic()
        is_check_due = now >= self._next_check_at
        last_fingerprint = None if is_check_due else self._consistent_fingerprint
        try:
            verified_split = self._read_verified(last_fingerprint)
        except RegistryInconsistent:
            self._consistent_fingerprint = None
            raise
        if verified_split.fingerprint != last_fingerprint:
            self._consistent_fingerprint = verified_split.fingerprint
            self._next_check_at = now + self._check_interval_s
        if verified_split.split is None:
            models = ", ".join(self._ledger.models()) or "none"
            raise UnknownVersion(
                f"No version of {self._model} is in production (models in the registry: {models}).",
                cause="The pipeline has not run yet, or its promotion gate promoted no version.",
                fix=f"Run: sluice run {self._model}",
            )
        return verified_split.split

    def _read_verified(self, last_fingerprint: str | None) -> VerifiedTrafficSplit:
        """Read the split; check its consistency unless it has the known fingerprint.

        If the model has no secret for the assignment of users yet, create it in the registry.
        """
        read = functools.partial(
            self._ledger.verified_traffic_split, self._model, last_fingerprint=last_fingerprint
        )
        verified_split = read()
        if verified_split.split is not None and not verified_split.split.secret:
            self._ledger.ensure_secret(self._model)
            verified_split = read()
        return verified_split
