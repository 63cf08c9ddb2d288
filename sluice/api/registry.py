"""``sluice.Registry``: versions of models, and the versions in production."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.base.artifacts import ArtifactStore
from sluice.base.current_user import current_user
from sluice.base.errors import UnknownVersion
from sluice.base.extras import naming_extras
from sluice.base.home import Home
from sluice.base.pluralize import pluralize
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.settings import GateSettings
from sluice.reports.notebook import fragment, heading, text_table
from sluice.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from sluice.api.ensemble import Ensemble
    from sluice.api.fit import FittedModel
    from sluice.registry.ledger import Ledger
    from sluice.registry.records import HistoryEntry, Promotion, Version


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegisteredModel:
    """A version of the registry, and the verdict of the promotion gate about it."""

    version: "Version"
    verdict: Verdict
    created: bool
    """Whether the version is new. It is not new if a version with the same data, settings, code and
    weights was registered before."""

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProductionModel:
    """The version in production, with its networks."""

    version: "Version"
    ensemble: "Ensemble"
    """Networks of all seeds, which predict together."""


class Registry:
    """Model registry in one database, which is opened for each call.

    ::

        registry = sluice.Registry()
        registered = registry.register("prices", sluice.fit(MyWorkload))
        if registered.verdict.passed:
            registry.promote("prices", registered.version.number, reason="agreed in review")
        model = registry.load_production("prices")

    Args:
        home: State folder that contains a registry. By default, the folder is ``SLUICE_HOME``, and
            ``SLUICE_REGISTRY_URL`` is the address of the registry, which may be on another machine.
        key: File of the key that signs every change. By default ``SLUICE_REGISTRY_KEY``; if
            ``home`` is passed, changes are not signed by default.
    """

    def __init__(self, home: Path | str | None = None, *, key: Path | str | None = None) -> None:
        environ = dict(os.environ)
        if home is not None:
            # Ignore other variables, such as SLUICE_REGISTRY_URL: they belong to SLUICE_HOME.
            environ = {"SLUICE_HOME": str(home)}
        if key is not None:
            environ["SLUICE_REGISTRY_KEY"] = str(key)
        self._home = Home.from_environment(environ, cwd=Path.cwd())

    def models(self) -> list[str]:
        """Return the names of all models, sorted; [] for a registry that does not exist yet."""
        with naming_extras("The registry"), self._open_existing() as ledger:
            return [] if ledger is None else ledger.models()

    def versions(self, model: str) -> "list[Version]":
        """Return the versions of a model, sorted by number; [] for an unknown model."""
        with naming_extras("The registry"), self._open_existing() as ledger:
            return [] if ledger is None else ledger.versions(model)

    def production(self, model: str) -> "Version | None":
        """Return the verified version in production; None if no version is in production.

        Raises:
            RegistryInconsistent: Pointer, history, log or receipts contradict each other.
        """
        with naming_extras("The registry"), self._open_existing() as ledger:
            return None if ledger is None else ledger.production(model)

    def history(self, model: str) -> "Sequence[HistoryEntry]":
        """Return all changes of a model, such as registrations and promotions, oldest first."""
        with naming_extras("The registry"), self._open_existing() as ledger:
            return [] if ledger is None else ledger.history(model)

    def register(
        self,
        model: str,
        fitted: "FittedModel",
        *,
        gate: GateSettings = GateSettings(),  # noqa: B008 - frozen
        guards: GuardSettings = GuardSettings(),  # noqa: B008 - frozen
        actor: str | None = None,
        reason: str = "registered from Python",
    ) -> RegisteredModel:
        """Run both gates on a trained model, and register it with their receipts.

        The POC gate runs on the rows and settings of the training, unless a receipt that passed is
        stored. The promotion gate compares the model with the version in production or, before the
        first promotion, with the baseline. It makes one decision for each candidate, reference and
        test window, so the same model gets the same verdict again. The model is registered with any
        verdict.

        Args:
            model: Name of the model.
            fitted: Result of ``sluice.fit``, in the same state folder.
            gate: Settings of the promotion gate.
            guards: Additional conditions of a promotion, such as metrics that must not get worse.
            actor: Who makes the change, for the history; by default the user of the system.
            reason: Reason, for the history.

        Raises:
            GateBlocked: The POC gate did not pass.
            CodecMismatch: The workload decodes requests differently than in the training.
            SettingsError: The model is stored in another state folder.
        """
        with naming_extras("The registry"):
            from sluice.api.registration import register_fitted

            with self._open(create=True) as ledger:
                version, verdict, created = register_fitted(
                    ledger,
                    model,
                    fitted,
                    home=self._home,
                    gate=gate,
                    guards=guards,
                    actor=actor or current_user(),
                    reason=reason,
                )
        return RegisteredModel(version=version, verdict=verdict, created=created)

    def promote(
        self, model: str, version: int, *, reason: str, actor: str | None = None
    ) -> "Promotion":
        """Promote a version to production, based on its recorded receipts.

        Raises:
            UnknownVersion: The version does not exist.
            GateBlocked: A required receipt is missing, did not pass, or is about another candidate.
        """
        with naming_extras("The registry"), self._open() as ledger:
            return ledger.promote(
                model,
                version,
                expected=ledger.production_number(model),
                actor=actor or current_user(),
                reason=reason,
                store=self._store,
            )

    def rollback(self, model: str, *, reason: str, actor: str | None = None) -> "Promotion":
        """Return to the last production version that was not rolled back.

        Raises:
            UnknownVersion: Nothing is in production, or there is no earlier version.
        """
        with naming_extras("The registry"), self._open() as ledger:
            production = ledger.production_number(model)
            if production is None:
                raise _nothing_in_production(model)
            return ledger.rollback(
                model,
                expected=production,
                actor=actor or current_user(),
                reason=reason,
                store=self._store,
            )

    def load_production(self, model: str) -> ProductionModel:
        """Load the networks of the version in production, verified against their digests.

        Raises:
            UnknownVersion: Nothing is in production.
            CodeMismatch: The version was trained with code that differs from the current code.
            IntegrityError: Weights are missing or were changed.
        """
        with naming_extras("The registry"):
            from sluice.api.ensemble import Ensemble
            from sluice.registry.loading import load_members
            from sluice.serving.deployed import deployed_members

            with self._open() as ledger:
                version = ledger.production(model)
            if version is None:
                raise _nothing_in_production(model)
            members = deployed_members(version.lineage.members)
            workload, networks = load_members(version, members, self._store)
        return ProductionModel(
            version=version, ensemble=Ensemble(workload=workload, networks=tuple(networks))
        )

    def _repr_html_(self) -> str:
        rows = [
            (name, str(v.number), v.state, f"{v.registered_at:%Y-%m-%d %H:%M}", v.candidate[:12])
            for name in self.models()
            for v in self.versions(name)
        ]
        return fragment(
            heading("Model registry", pluralize(len(rows), "version"), "plain"),
            text_table(("model", "version", "state", "registered", "candidate"), rows),
        )

    @property
    def _store(self) -> ArtifactStore:
        return ArtifactStore(self._home.artifacts)

    @contextlib.contextmanager
    def _open_existing(self) -> "Iterator[Ledger | None]":
        """Yield the ledger; None if its database does not exist yet. It is not created."""
        try:
            ledger = self._open()
        except UnknownVersion:
            yield None
            return
        with ledger:
            yield ledger

    def _open(self, *, create: bool = False) -> "Ledger":
        from sluice.registry.ledger import Ledger
        from sluice.registry.signing import SigningKey

        key = self._home.registry_key
        return Ledger.open(
            self._home.registry_url,
            clock=lambda: datetime.now(UTC),
            create=create,
            key=None if key is None else SigningKey.read(key),
        )


def _nothing_in_production(model: str) -> UnknownVersion:
    return UnknownVersion(
        f"{model} has no version in production.",
        fix="Promote a version: Registry().promote(model, version, reason=...)",
    )
