"""What may be filed in the registry, and what is said when it may not."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sluice.base.dict_diff import differing
from sluice.base.digests import short
from sluice.base.errors import ContractError, UnknownVersion
from sluice.base.receipts import Receipt
from sluice.base.settings import nearest
from sluice.registry.lineage import Lineage

MAX_NAME = 200
"""Longest name of a model [characters]; the width of the ledger's column."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")

QUESTION = ("candidate", "reference", "window")
"""Roles in the subject of a promotion receipt that make up the question it answers."""

MEASURED = {
    "best_epoch",
    "epochs_run",
    "train_loss",
    "val_loss",
    "test_metrics",
    "trained_through",
}
"""What the training of a member found besides the weights; the same weights, the same findings."""

SAME_MEASURE = 1e-4
"""Results of the same weights on machines that add up in another order differ by less
[relative, and absolute near 0]."""

MAX_NAMED = 3
"""Differences that a line of history names."""


def require_consistent(model: str, lineage: Lineage) -> None:
    """Refuse lineage of another model, or whose parts do not make its candidate."""
    named_wrong = name_problem(model)
    if named_wrong:
        raise ContractError(
            f"A candidate must have a usable name of its model, and {named_wrong}.",
            fix="Name the pipeline so.",
        )
    if lineage.model != model:
        raise ContractError(
            f"A lineage of model {model!r} is required, got one of {lineage.model!r}.",
            fix="Register a candidate under the name of the pipeline that made it.",
        )
    problem = lineage.contradiction()
    if problem:
        raise ContractError(
            f"The lineage of a candidate must fit together, and {problem}.",
            fix="Take candidate, data, config, code and members from one TrainedModels, and the "
            "settings that it was trained with.",
        )


def name_problem(model: str) -> str:
    """Return what is wrong with the name of a model, as part of a sentence; "" when nothing.

    The name becomes part of addresses, of paths and of lines in a terminal.
    """
    if len(model) <= MAX_NAME and _NAME.fullmatch(model):
        return ""
    return (
        f"a model's name has 1 to {MAX_NAME} lower-case letters, digits and underscores and begins "
        f"with a letter, got {model[:80]!r}"
    )


def require_same_told(imported: Lineage, told: Lineage) -> None:
    """Refuse a file about an imported candidate that tells otherwise than the first one did.

    The first file's word stays. Trust in the second, or its signature, must not be taken for trust
    in the first: the candidate's digest binds no results.

    Raises:
        ContractError: Results, what it was compared with, the parts of its code, or an artifact
            differ; logs, times and the machine may.
    """
    found = _told_otherwise(imported, told)
    if imported.reference != told.reference:
        found.append(
            f"reference was imported as {short(imported.reference)} and is {short(told.reference)}"
        )
    if imported.code_identity != told.code_identity:
        found.append("the parts of its code are not those that were imported")
    found += [
        f"its {role} is not what was imported"
        for role, _, _ in differing(_artifacts(imported), _artifacts(told))
    ]
    if found:
        raise ContractError(
            f"A file about a candidate that was imported before must tell what the first file told "
            f"({short(imported.candidate)}), and does not: {'; '.join(found[:MAX_NAMED])}.",
            cause="One of the two files was forged or comes from another training; what the first "
            "one told is what the registry keeps.",
            fix="Find out which is true. Import into a registry that does not have the candidate, "
            "or train it here: what is made here counts from then on.",
        )


def own_reason(reason: str, *, imported: Lineage, own: Lineage) -> str:
    """Return why an imported version is registered, and which results its file told wrong."""
    found = _told_otherwise(imported, own)
    said = f"{reason} here, which counts from now on"
    if not found:
        return said
    return f"{said}; the file it came from told other results: {'; '.join(found[:MAX_NAMED])}"


def _artifacts(lineage: Lineage) -> dict[str, str]:
    return {role: digest for role, digest in lineage.artifacts.items() if role != "event log"}


def _told_otherwise(imported: Lineage, own: Lineage) -> list[str]:
    return [
        f"{path} was imported as {one} and is {other}"
        for path, one, other in differing(_measures(imported), _measures(own))
        if not _is_same(one, other)
    ]


def _measures(lineage: Lineage) -> dict[str, Any]:
    members = {
        f"seed {m.seed} fold {m.fold_id}": m.model_dump(include=MEASURED) for m in lineage.members
    }
    return {"metrics": lineage.metrics} | members


def _is_same(one: Any, other: Any) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return False  # they differ, else they would not be asked about
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=SAME_MEASURE, abs_tol=SAME_MEASURE)


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


def require_text(text: str, *, what: str) -> None:
    """Refuse what not every database can hold: bytes that are no UTF-8, and a NUL."""
    if "\0" in text:
        raise ContractError(
            f"The {what} must hold no NUL character, got one at {text.index(chr(0))}.",
            fix="Leave it out.",
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ContractError(
            f"The {what} must be text in UTF-8, got {text[:80]!r}.",
            fix="Type it again, in a terminal that writes UTF-8.",
        ) from None


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
