"""Checks before a training that the evaluation can open the other versions and the suites."""

from collections.abc import Mapping, Sequence

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import short
from sluice.base.errors import GateBlocked, IntegrityError
from sluice.base.pluralize import pluralize
from sluice.data.table_bytes import read_table_bytes
from sluice.evaluation.reference import RECORDED_LOSSES
from sluice.evaluation.suites.library import SuiteLibrary, require_guarded_suites
from sluice.registry.lineage import Lineage
from sluice.registry.loading import load_networks
from sluice.registry.missing_artifacts import (
    explain_missing_artifacts,
    is_registry_of_home,
    lacks_all_weights,
)
from sluice.registry.readonly import ReadonlyLedger
from sluice.registry.records import Version


def open_evaluation_inputs(
    ledger: ReadonlyLedger,
    model: str,
    library: SuiteLibrary,
    store: ArtifactStore,
    *,
    approved: str | None,
    guarded_suites: Sequence[str],
    subject: Mapping[str, str],
    seeds: tuple[int, ...],
) -> tuple[str, ...]:
    """Open the version in production, the approved version and the regression suites.

    The version in production is not opened if the planned training will reproduce it.

    Args:
        ledger: Registry.
        model: Name of the pipeline.
        library: Regression suites of the pipeline.
        store: Artifact store of this home.
        approved: Value of the setting ``guards.approved``, a candidate digest or None.
        guarded_suites: Names of the suites with a guard.
        subject: Digests of data, config and code of the planned training. The recorded losses of a
            version with another code digest are read, too: the evaluation must reproduce them.
        seeds: Seeds of the planned training.

    Returns:
        Descriptions of the opened inputs; empty if nothing had to be opened.

    Raises:
        IntegrityError: An artifact is missing, damaged or cannot be loaded.
        GateBlocked: The approved version or a guarded suite does not exist.

    Cost:
        Milliseconds per version, for reading its weights and building its networks.
    """
    descriptions, code_digest = [], subject["code"]
    production = ledger.production(model)
    if production is not None and not _will_be_reproduced(
        production.lineage, ledger.url, store, subject=subject, seeds=seeds
    ):
        descriptions.append(
            _open_version(production, "in production", ledger.url, store, code_digest=code_digest)
        )
    if approved is not None and (production is None or production.candidate != approved):
        version = ledger.version_of(model, approved)
        if version is None:
            raise GateBlocked(
                f"guards.approved must be a registered version of {model}, but the registry "
                f"{ledger.url} has no candidate {short(approved)}.",
                cause="Without the losses of this version the guard cannot pass.",
                fix="Import that version (sluice registry import), correct guards.approved in the "
                "pipeline's YAML, or remove it.",
            )
        descriptions.append(
            _open_version(version, "approved", ledger.url, store, code_digest=code_digest)
        )
    suites = library.newest()
    descriptions += [f"suite '{entry.suite.name}' version {entry.version}" for entry in suites]
    require_guarded_suites(library, guarded_suites)
    return tuple(descriptions)


def _will_be_reproduced(
    lineage: Lineage,
    registry_url: str,
    store: ArtifactStore,
    *,
    subject: Mapping[str, str],
    seeds: tuple[int, ...],
) -> bool:
    """Return whether the planned training will produce the same artifacts as this version.

    A version that was trained in another home is sometimes not reproduced bit for bit, because
    another processor may round differently. The comparison then needs the version's weights. If
    none of them are in the store, such a version does not count as reproduced: it is opened now,
    so that the missing weights are reported before the training.
    """
    has_same_subject = lineage.seeds == seeds and all(
        getattr(lineage, role) == digest for role, digest in subject.items()
    )
    is_from_this_home = is_registry_of_home(registry_url, store)
    return has_same_subject and (is_from_this_home or not lacks_all_weights(lineage, store))


def _open_version(
    version: Version, role: str, registry_url: str, store: ArtifactStore, *, code_digest: str
) -> str:
    """Load the networks of a version, and its losses if its code differs; return a description."""
    name = f"{version.model} version {version.number} ({role})"
    lineage = version.lineage
    if lacks_all_weights(lineage, store):
        cause, fix = explain_missing_artifacts(registry_url, store)
        artifact_name, digest = next(iter(lineage.weights().items()))
        raise IntegrityError(
            f"The candidate is compared with {name}, but none of its "
            f"{pluralize(len(lineage.weights()), 'weights file')} is in {store.root}; the first "
            f"is artifact {digest} ({artifact_name}).",
            cause=cause,
            fix=fix,
        )
    try:
        networks = load_networks(version, store)
    except IntegrityError as error:
        raise IntegrityError(
            f"The candidate is compared with {name}, which cannot be loaded: {error.what}",
            cause=error.cause,
            fix=error.fix,
        ) from error
    if lineage.code != code_digest:
        _open_losses(name, lineage.artifacts.get("losses"), store)
    return f"{name}, {pluralize(len(networks), 'network')}"


def _open_losses(name: str, digest: str | None, store: ArtifactStore) -> None:
    """Read the recorded losses of a version whose code differs from the current code."""
    problem = "it has no recorded losses."
    if digest is not None:
        try:
            what = f"artifact {short(digest)} with its losses"
            read_table_bytes(store.get(digest), what=what, kinds=RECORDED_LOSSES)
        except IntegrityError as error:
            problem = f"{error.what.rstrip('.')}."
        else:
            return
    raise IntegrityError(
        f"The code has changed since {name} was trained. The version must therefore reproduce its "
        f"recorded losses, but {problem}",
        fix="Restore the losses from a backup or from the home that registered the version, or "
        "restore the code.",
    )
