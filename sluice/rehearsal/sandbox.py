"""A registry of its own for a rehearsal: the version in production and a twin of it.

The real registry is read and never written; nothing that happens here moves anything there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.base.errors import ContractError
from sluice.base.home import Home
from sluice.base.pluralize import counted
from sluice.base.receipts import Receipt
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE, Lineage
from sluice.registry.records import Version
from sluice.registry.rollouts import RolloutLedger

ACTOR = "rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What a rehearsal works on."""

    home: Home
    ledger: RolloutLedger
    store: ArtifactStore
    production: Version
    challenger: Version


@contextmanager
def open_sandbox(
    ledger: Ledger,
    production: Version,
    store: ArtifactStore,
    *,
    folder: Path,
    clock: Callable[[], datetime],
) -> Iterator[Sandbox]:
    """Yield a sandbox in a folder, which is the caller's to remove.

    Args:
        ledger: The real one, for the receipts.
        production: The real version in production.
        store: The real one.
        folder: Empty.
        clock: Of the sandbox.

    Raises:
        ContractError: No twin can be made of the version.
        GateBlocked: The receipts of the real version would not let it into production today.
        IntegrityError: An artifact of it is missing or changed.
    """
    lineage = twin(production.lineage)
    home = Home(root=folder, registry_url=f"sqlite:///{folder / 'registry.db'}")
    copy = ArtifactStore(home.artifacts)
    for digest in {
        *production.lineage.weights().values(),
        *production.lineage.other_artifacts().values(),
    }:
        copy.put(store.get(digest))
    receipts = [
        linked.receipt
        for linked in ledger.receipts(production.model, production.number)
        if linked.receipt.gate != "promotion"
    ]
    with RolloutLedger.open(home.registry_url, clock=clock) as own:
        first = own.register(
            production.model,
            production.lineage,
            [*receipts, _leave(production.lineage, reference=BASELINE, at=clock())],
        ).version
        own.promote(
            production.model,
            first.number,
            expected=None,
            actor=ACTOR,
            reason=f"version {production.number} of the real registry is in production there",
            store=copy,
        )
        second = own.register(
            production.model,
            lineage,
            [*receipts, _leave(lineage, reference=production.candidate, at=clock())],
        ).version
        yield Sandbox(home=home, ledger=own, store=copy, production=first, challenger=second)


def twin(lineage: Lineage) -> Lineage:
    """Return lineage of the same networks under another candidate digest.

    Each network is filed under the next seed. So the twin is exactly as good as production: what
    the rollout sees of it is the planted fault, and without one it has to be promoted. Another
    model, of older rows or of fewer seeds, might be worse, and the right end would not be known.

    Raises:
        ContractError: There is one seed alone.
    """
    seeds = lineage.seeds
    after = dict(zip(seeds, (*seeds[1:], seeds[0]), strict=True))
    members = tuple(
        member.model_copy(update={"seed": after[member.seed]}) for member in lineage.members
    )
    draft = lineage.model_copy(update={"members": members, "reference": lineage.candidate})
    found = draft.model_copy(update={"candidate": draft.candidate_of_parts()})
    if found.candidate == lineage.candidate:
        raise ContractError(
            f"A rehearsal needs networks of two seeds that differ, got "
            f"{counted(len(seeds), 'seed')} of {lineage.model}.",
            fix="Train with several seeds, as the gate requires in any case.",
        )
    return found


def _leave(lineage: Lineage, *, reference: str, at: datetime) -> Receipt:
    """Return the receipt that stands in for the gate; it is in the sandbox alone."""
    return Receipt(
        gate="promotion",
        outcome="PROMOTE",
        passed=True,
        subject={
            "data": lineage.data,
            "config": lineage.config,
            "code": lineage.code,
            "candidate": lineage.candidate,
            "reference": reference,
            "window": digest_json(["rehearsal", lineage.candidate, reference]),
        },
        evidence={},
        reason="A rehearsal asks what the rollout does, not what the gate says.",
        decided_at=at,
    )
