"""Separate registry for a rehearsal, with the production version and a clone of this version.

The real registry is only read.
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
from sluice.base.pluralize import pluralize
from sluice.base.receipts import Receipt
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE, Lineage
from sluice.registry.records import Version
from sluice.registry.rollouts import RolloutLedger

ACTOR = "rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Registry, store and versions of a rehearsal."""

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
    """Yield a sandbox in a folder that the caller removes.

    Args:
        ledger: The real registry, for the receipts.
        production: The real version in production.
        store: The real artifact store.
        folder: Empty folder.
        clock: Clock of the sandbox.

    Raises:
        ContractError: The version cannot be cloned.
        GateBlocked: The receipts of the real version would not allow its promotion today.
        IntegrityError: An artifact of the real version is missing or changed.
    """
    cloned_lineage = clone(production.lineage)
    home = Home(root=folder, registry_url=f"sqlite:///{folder / 'registry.db'}")
    sandbox_store = ArtifactStore(home.artifacts)
    for digest in {
        *production.lineage.weights().values(),
        *production.lineage.other_artifacts().values(),
    }:
        sandbox_store.put(store.get(digest))
    receipts = [
        linked.receipt
        for linked in ledger.receipts(production.model, production.number)
        if linked.receipt.gate != "promotion"
    ]
    with RolloutLedger.open(home.registry_url, clock=clock) as sandbox_ledger:
        sandbox_production = sandbox_ledger.register(
            production.model,
            production.lineage,
            [*receipts, _stand_in_receipt(production.lineage, reference=BASELINE, at=clock())],
        ).version
        sandbox_ledger.promote(
            production.model,
            sandbox_production.number,
            expected=None,
            actor=ACTOR,
            reason=f"version {production.number} of the real registry is in production there",
            store=sandbox_store,
        )
        challenger = sandbox_ledger.register(
            production.model,
            cloned_lineage,
            [
                *receipts,
                _stand_in_receipt(cloned_lineage, reference=production.candidate, at=clock()),
            ],
        ).version
        yield Sandbox(
            home=home,
            ledger=sandbox_ledger,
            store=sandbox_store,
            production=sandbox_production,
            challenger=challenger,
        )


def clone(lineage: Lineage) -> Lineage:
    """Return a lineage of the same networks with another candidate digest.

    Each network is registered under the next seed, so the clone is exactly as good as
    production. The only difference that the rollout can detect is the injected fault, and
    without a fault the clone must be promoted. Another model, for example from older rows, might
    be worse, and the expected result would be unknown.

    Raises:
        ContractError: The version has only one seed.
    """
    seeds = lineage.seeds
    next_seed = dict(zip(seeds, (*seeds[1:], seeds[0]), strict=True))
    members = tuple(
        member.model_copy(update={"seed": next_seed[member.seed]}) for member in lineage.members
    )
    draft = lineage.model_copy(update={"members": members, "reference": lineage.candidate})
    cloned_lineage = draft.model_copy(update={"candidate": draft.compute_candidate()})
    if cloned_lineage.candidate == lineage.candidate:
        raise ContractError(
            f"A rehearsal needs different networks of at least two seeds, got "
            f"{pluralize(len(seeds), 'seed')} of {lineage.model}.",
            fix="Train with several seeds, which the promotion gate requires as well.",
        )
    return cloned_lineage


def _stand_in_receipt(lineage: Lineage, *, reference: str, at: datetime) -> Receipt:
    """Return a promotion receipt for the sandbox, in place of a receipt of the promotion gate."""
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
        reason="Created by a rehearsal, which tests the rollout and not the gate.",
        decided_at=at,
    )
