"""The models of one name in the registry, loaded by candidate digest."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import short
from sluice.base.errors import UnknownVersion
from sluice.registry.ledger import Ledger
from sluice.registry.loading import compare_version
from sluice.registry.stored_code import CodeChoice
from sluice.serving.deployed import Deployed, load_deployed
from sluice.serving.frames import Recipe


class LedgerModels:
    """Loads what the weights name."""

    def __init__(
        self,
        ledger: Ledger,
        model: str,
        store: ArtifactStore,
        *,
        code: CodeChoice = "present",
        warn: Callable[[str], object] | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            ledger: Of the model.
            model: Its name.
            store: Holds the weights.
            code: Whose network class gets the weights; see ``load_members``.
            warn: Called with a sentence about a version whose code cannot be compared, or whose
                packages are others here.
        """
        self._ledger = ledger
        self._model = model
        self._store = store
        self._code: CodeChoice = code
        self._warn = warn

    def load(self, candidate: str) -> Deployed:
        """Return the model of a candidate digest.

        Raises:
            UnknownVersion: The registry has no such candidate.
            RegistryUnsound: The registry contradicts itself about it.
            StorageError: The registry cannot be read, or weights are missing or changed.
            ContractError, OtherCode: See ``load_deployed``.
        """
        version = self._ledger.served_version(self._model, candidate)
        if version is None:
            raise UnknownVersion(
                f"The candidate {short(candidate)} must be a version of {self._model}, and is "
                "none.",
                fix=f"See: sluice registry list {self._model}",
            )
        deployed = load_deployed(version, self._store, code=self._code)
        if self._warn is not None and self._code == "present":
            warning = compare_version(version).warning(f"{self._model} version {version.number}")
            if warning:
                self._warn(warning)
        return deployed


def ledger_recipe(
    registry_url: str, model: str, artifacts: Path, *, code: CodeChoice = "present"
) -> Recipe:
    """Return how another process loads what ``LedgerModels`` loads in this one.

    Args:
        registry_url: SQLAlchemy URL.
        model: Its name.
        artifacts: Folder of the store.
        code: Whose network class gets the weights; see ``load_members``.
    """
    return Recipe(
        load=f"{__name__}:load_from_ledger",
        arguments={
            "registry_url": registry_url,
            "model": model,
            "artifacts": str(artifacts),
            "code": code,
        },
    )


def load_from_ledger(
    candidate: str, *, registry_url: str, model: str, artifacts: str, code: CodeChoice = "present"
) -> Deployed:
    """Return the model of a candidate digest, as ``LedgerModels.load``."""
    with Ledger.open(registry_url, clock=lambda: datetime.now(UTC), create=False) as ledger:
        store = ArtifactStore(Path(artifacts))
        return LedgerModels(ledger, model, store, code=code).load(candidate)
