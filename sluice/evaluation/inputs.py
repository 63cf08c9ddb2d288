"""What an evaluation reads besides the candidate, opened before the hours of its training."""

from collections.abc import Mapping, Sequence

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import short
from sluice.base.errors import GateBlocked, IntegrityError
from sluice.base.pluralize import counted
from sluice.data.table_bytes import read_table_bytes
from sluice.evaluation.reference import RECORDED_LOSSES
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.evaluation.suites.renewal import HARD
from sluice.registry.absence import explain_absence, is_absent, is_own_registry
from sluice.registry.lineage import Lineage
from sluice.registry.loading import load_networks
from sluice.registry.reading import LedgerReading
from sluice.registry.records import Version


def open_evaluation_inputs(
    ledger: LedgerReading,
    model: str,
    library: SuiteLibrary,
    store: ArtifactStore,
    *,
    approved: str | None,
    guarded_suites: Sequence[str],
    subject: Mapping[str, str],
    seeds: tuple[int, ...],
) -> tuple[str, ...]:
    """Open production, the approved version and the regression suites, as an evaluation will.

    Args:
        ledger: The registry.
        model: Name of the pipeline.
        library: Its regression suites.
        store: The artifacts of this home.
        approved: Candidate digest that ``guards.approved`` names; None without that guard.
        guarded_suites: Names of the suites that guard promotion.
        subject: Digests of data, config and code of what is to be trained. A version of other
            code has to reproduce its recorded losses, which are read then.
        seeds: Of what is to be trained.

    Returns:
        What was opened, a phrase each; empty when the baseline alone is compared with.

    Raises:
        IntegrityError: An artifact is missing, damaged or does not load.
        GateBlocked: The approved version or a guarded suite does not exist.

    Cost: the networks of two versions are read and built, milliseconds each.
    """
    opened, code = [], subject["code"]
    production = ledger.production(model)
    if production is not None and not _is_made_again(
        production.lineage, ledger.url, store, subject=subject, seeds=seeds
    ):
        opened.append(_open_version(production, "in production", ledger.url, store, code=code))
    if approved is not None and (production is None or production.candidate != approved):
        version = ledger.version_of(model, approved)
        if version is None:
            raise GateBlocked(
                f"guards.approved must name a registered version of {model}, and the registry "
                f"{ledger.url} has no candidate {short(approved)}.",
                cause="Without its losses the guard cannot pass, whatever is trained.",
                fix="Import that version (sluice registry import), correct guards.approved in the "
                "pipeline's YAML, or remove it.",
            )
        opened.append(_open_version(version, "approved", ledger.url, store, code=code))
    suites = library.newest()
    opened += [f"suite '{filed.suite.name}' version {filed.version}" for filed in suites]
    # The hard suite is made by the evaluation itself.
    known = {HARD, *(filed.suite.name for filed in suites)}
    for name in guarded_suites:
        if name not in known:
            raise GateBlocked(
                f"The guard of suite '{name}' must find its suite, and this home has "
                f"{', '.join(sorted(known - {HARD})) or 'none but the hard one'}.",
                cause="Without its rows the guard cannot pass, whatever is trained. Suites are "
                "stored in a home, not in the registry.",
                fix="Add the suite (sluice suites add --help), or remove its guard from the "
                "pipeline's YAML.",
            )
    return tuple(opened)


def _is_made_again(
    lineage: Lineage,
    url: str,
    store: ArtifactStore,
    *,
    subject: Mapping[str, str],
    seeds: tuple[int, ...],
) -> bool:
    """Return whether the training makes this version, and what it lost, again.

    Of a version that another home registered that is not certain: another processor may give other
    bits, and so another candidate, which is compared with it.
    """
    same = lineage.seeds == seeds and all(
        getattr(lineage, role) == digest for role, digest in subject.items()
    )
    return same and (is_own_registry(url, store) or not is_absent(lineage, store))


def _open_version(version: Version, role: str, url: str, store: ArtifactStore, *, code: str) -> str:
    who = f"{version.model} version {version.number} ({role})"
    lineage = version.lineage
    if is_absent(lineage, store):
        cause, fix = explain_absence(url, store)
        part, digest = next(iter(lineage.weights().items()))
        raise IntegrityError(
            f"The candidate is compared with {who}, and none of its "
            f"{counted(len(lineage.weights()), 'file')} of weights is in {store.root}; the first "
            f"is artifact {digest} ({part}).",
            cause=cause,
            fix=fix,
        )
    try:
        networks = load_networks(version, store)
    except IntegrityError as error:
        raise IntegrityError(
            f"The candidate is compared with {who}, which does not open: {error.what}",
            cause=error.cause,
            fix=error.fix,
        ) from error
    if lineage.code != code:
        _open_losses(who, lineage.artifacts.get("losses"), store)
    return f"{who}, {counted(len(networks), 'network')}"


def _open_losses(who: str, digest: str | None, store: ArtifactStore) -> None:
    """Read the losses that a version of other code has to reproduce."""
    problem = "it records none"
    if digest is not None:
        try:
            what = f"artifact {short(digest)} with them"
            read_table_bytes(store.get(digest), what=what, kinds=RECORDED_LOSSES)
        except IntegrityError as error:
            problem = error.what.rstrip(".")
        else:
            return
    raise IntegrityError(
        f"The code changed since {who} was trained, so it has to reproduce its recorded losses, "
        f"and {problem}",
        fix="Restore them from a backup or from the home that registered the version, or put the "
        "code back.",
    )
