"""What may be filed in the registry, and what is said when it may not."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sluice.errors import ContractError, UnknownVersion
from sluice.receipts import Receipt
from sluice.registry.lineage import Lineage
from sluice.settings import nearest

MAX_NAME = 200
"""Longest name of a model [characters]; the width of the ledger's column."""

QUESTION = ("candidate", "reference", "window")
"""Roles in the subject of a promotion receipt that make up the question it answers."""


def require_consistent(model: str, lineage: Lineage) -> None:
    """Refuse lineage of another model, or whose parts do not make its candidate."""
    if not model.strip() or not model.isprintable() or len(model) > MAX_NAME:
        raise ContractError(
            f"A model's name has 1 to {MAX_NAME} printable characters, got {model[:80]!r}.",
            fix="Name the pipeline so.",
        )
    if lineage.model != model:
        raise ContractError(
            f"A lineage of model {model!r} is required, got one of {lineage.model!r}.",
            fix="Register a candidate under the name of the pipeline that made it.",
        )
    if lineage.candidate != lineage.candidate_of_parts():
        raise ContractError(
            f"The lineage's candidate is {lineage.candidate[:12]}, and its data, config, code and "
            f"weights make {lineage.candidate_of_parts()[:12]}.",
            fix="Take candidate, data, config, code and members from one TrainedModels.",
        )


def question(subject: Mapping[str, str]) -> dict[str, str]:
    """Return what a promotion receipt answers; refuse a subject that does not say."""
    missing = [role for role in QUESTION if not subject.get(role)]
    if missing:
        raise ContractError(
            f"A promotion receipt must name candidate, reference and window in its subject; "
            f"{', '.join(missing)} is missing.",
            fix="Add the digests (reference 'baseline' when nothing is in production).",
        )
    return {role: subject[role] for role in QUESTION}


def require_answer(receipt: Receipt, asked: Mapping[str, str]) -> None:
    """Refuse a receipt that is no answer to what was asked."""
    wrong = [role for role, digest in asked.items() if receipt.subject.get(role) != digest]
    if receipt.gate != "promotion" or wrong:
        raise ContractError(
            f"An answer of the promotion gate to the question asked is required, got one of the "
            f"{receipt.gate} gate about another {', '.join(wrong) or 'matter'}.",
            fix="Judge what is asked, then write its receipt.",
        )


def require_standing(standing: Receipt, receipt: Receipt) -> None:
    """Refuse a second answer to a question that has one."""
    if standing.digest != receipt.digest:
        raise ContractError(
            f"This candidate was judged on this window against this reference already "
            f"({standing.outcome}, receipt {standing.digest[:12]}), and another answer "
            f"({receipt.outcome}, receipt {receipt.digest[:12]}) was handed over.",
            cause="Asking again until the answer is yes would void the gate's error rate.",
            fix="Use the receipt that the ledger returns, or judge on a newer window.",
        )


def require_past(when: datetime, *, now: datetime) -> None:
    """Refuse a moment without a time zone, or one that has not come."""
    if when.tzinfo is None:
        raise ContractError(
            f"A moment needs its time zone, got {when.isoformat()}.",
            fix=f"Write it with one: {when.isoformat()}Z for UTC, or {when.isoformat()}+02:00",
        )
    if not when <= now:
        raise ContractError(
            f"The moment {when.isoformat()} has not come yet; it is {now.isoformat()}.",
            fix="Name one in the past.",
        )


def unknown(model: str, number: int | None, names: Sequence[str]) -> UnknownVersion:
    """Say that there is no such model or version, and what there is."""
    if model not in names:
        known = f" Known: {', '.join(names)}." if names else " It holds no model yet."
        return UnknownVersion(
            f"The registry has no model {model!r}.{nearest(model, list(names))}{known}",
            fix="Name one of them, or run its pipeline first.",
        )
    return UnknownVersion(
        f"{model} has no version {number}.", fix=f"See what there is: sluice registry list {model}"
    )
