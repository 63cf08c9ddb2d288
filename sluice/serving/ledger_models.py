"""Loads the versions of one model from the registry by candidate digest."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import short
from sluice.base.errors import UnknownVersion
from sluice.registry.ledger import Ledger
from sluice.registry.loading import compare_version
from sluice.registry.stored_code import CodeSource
from sluice.serving.deployed import DeployedModel, load_deployed
from sluice.serving.wire_protocol import LoaderSpec


class LedgerModels:
    """Loads the versions that a traffic split refers to."""

    def __init__(
        self,
        ledger: Ledger,
        model: str,
        store: ArtifactStore,
        *,
        code: CodeSource = "current",
        warn: Callable[[str], object] | None = None,
    ) -> None:
        """Store the arguments; ``load`` reads the registry.

        Args:
            ledger: Registry of the model.
            model: Name of the model.
            store: Artifact store with the network weights.
            code: Whether to use the current or the stored code of the network class; see
                ``load_members``.
            warn: Called with a warning if the code of a version cannot be compared with the
                current code, or if packages, Sluice or data files differ.
        """
        self._ledger = ledger
        self._model = model
        self._store = store
        self._code: CodeSource = code
        self._warn = warn

    def load(self, candidate: str) -> DeployedModel:
        """Return the model of a candidate digest.

        Raises:
            UnknownVersion: The registry has no such candidate.
            RegistryInconsistent: Registry entries about the candidate contradict each other.
            StorageError: The registry cannot be read, or network weights are missing or changed.
            ContractError, CodeMismatch, UntrustedCode: See ``load_deployed``.
        """
        version = self._ledger.verified_version_of(self._model, candidate)
        if version is None:
            raise UnknownVersion(
                f"The candidate {short(candidate)} is not a version of {self._model}.",
                fix=f"See: sluice registry list {self._model}",
            )
        deployed = load_deployed(version, self._store, code=self._code)
        if self._warn is not None and self._code == "current":
            warning = compare_version(version).warning(f"{self._model} version {version.number}")
            if warning:
                self._warn(warning)
        return deployed


def ledger_loader_spec(
    registry_url: str, model: str, artifacts: Path, *, code: CodeSource = "current"
) -> LoaderSpec:
    """Return the specification with which another process loads models of the registry.

    Args:
        registry_url: SQLAlchemy URL of the registry.
        model: Name of the model.
        artifacts: Folder of the artifact store.
        code: Whether to use the current or the stored code of the network class; see
            ``load_members``.
    """
    return LoaderSpec(
        load=f"{__name__}:load_from_ledger",
        arguments={
            "registry_url": registry_url,
            "model": model,
            "artifacts": str(artifacts),
            "code": code,
        },
    )


def load_from_ledger(
    candidate: str, *, registry_url: str, model: str, artifacts: str, code: CodeSource = "current"
) -> DeployedModel:
    """Return the model of a candidate digest; called in the process of a challenger.

    See ``LedgerModels.load``.
    """
    with Ledger.open(registry_url, clock=lambda: datetime.now(UTC), create=False) as ledger:
        store = ArtifactStore(Path(artifacts))
        return LedgerModels(ledger, model, store, code=code).load(candidate)
