"""Validation of everything stored in the registry, with the errors for invalid input."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sluice.base.dict_diff import iter_differences
from sluice.base.digests import short
from sluice.base.errors import ContractError, UnknownVersion
from sluice.base.receipts import Receipt
from sluice.base.settings import suggest_nearest
from sluice.registry.lineage import Lineage

MAX_NAME = 200
"""Maximum length of a model name [characters]; the width of the database column."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")

DECISION_ROLES = ("candidate", "reference", "window")
"""Roles in the subject of a promotion receipt that identify a decision."""

RESULT_FIELDS = {
    "best_epoch",
    "epochs_run",
    "train_loss",
    "val_loss",
    "test_metrics",
    "trained_through",
}
"""Fields of a member with training results; determined by the weights."""

RESULT_TOLERANCE = 1e-4
"""Maximum difference between results of the same weights on different machines, which add up in
different orders [relative, and absolute near 0]."""

MAX_LISTED_DIFFERENCES = 3
"""Maximum number of differences listed in a message or a history entry."""


def require_consistent_lineage(model: str, lineage: Lineage) -> None:
    """Reject lineage of another model, or whose parts do not match its candidate digest."""
    named_wrong = find_name_problem(model)
    if named_wrong:
        raise ContractError(
            f"The model name of a candidate is invalid: {named_wrong}.",
            fix="Rename the pipeline.",
        )
    if lineage.model != model:
        raise ContractError(
            f"A lineage of model {model!r} is required, got one of {lineage.model!r}.",
            fix="Register a candidate under the name of the pipeline that made it.",
        )
    problem = lineage.find_contradiction()
    if problem:
        raise ContractError(
            f"The lineage of a candidate must be consistent, but {problem}.",
            fix="Take candidate, data, config, code and members from one TrainedModels, and the "
            "settings that it was trained with.",
        )


def find_name_problem(model: str) -> str:
    """Return why a model name is invalid, as a clause; "" if it is valid.

    The name becomes part of URLs, of paths and of terminal output.
    """
    if len(model) <= MAX_NAME and _NAME.fullmatch(model):
        return ""
    return (
        f"a model's name has 1 to {MAX_NAME} lower-case letters, digits and underscores and begins "
        f"with a letter, got {model[:80]!r}"
    )


def require_same_results(imported: Lineage, other: Lineage) -> None:
    """Reject a second import of a candidate whose lineage contradicts the first import.

    The first lineage stays. Trust in the second file, or its signature, must not extend to the
    first: the candidate digest does not cover results.

    Raises:
        ContractError: Results, the reference, the parts of the code, or an artifact differ. Logs,
            times and the machine may differ.
    """
    found = _result_differences(imported, other)
    if imported.reference != other.reference:
        found.append(
            f"reference was imported as {short(imported.reference)} and is {short(other.reference)}"
        )
    if imported.code_identity != other.code_identity:
        found.append("the parts of its code differ from the first import")
    found += [
        f"its {role} differs from the first import"
        for role, _, _ in iter_differences(_artifacts(imported), _artifacts(other))
    ]
    if found:
        raise ContractError(
            f"A file with candidate {short(imported.candidate)}, which was imported before, must "
            f"agree with the first file: {'; '.join(found[:MAX_LISTED_DIFFERENCES])}.",
            cause="One of the two files was forged or comes from another training. The registry "
            "keeps the results of the first file.",
            fix="Find out which file is correct. Import it into a registry without the candidate, "
            "or train the candidate here: local results then replace the imported ones.",
        )


def registration_reason(reason: str, *, imported: Lineage, own: Lineage) -> str:
    """Return the history reason for a local training of an imported version.

    Includes the results that differ from those in the file.
    """
    found = _result_differences(imported, own)
    text = f"{reason} here, which counts from now on"
    if not found:
        return text
    listed = "; ".join(found[:MAX_LISTED_DIFFERENCES])
    return f"{text}; the imported file had other results: {listed}"


def _artifacts(lineage: Lineage) -> dict[str, str]:
    return {role: digest for role, digest in lineage.artifacts.items() if role != "event log"}


def _result_differences(imported: Lineage, own: Lineage) -> list[str]:
    return [
        f"{path} was imported as {one} and is {other}"
        for path, one, other in iter_differences(_measures(imported), _measures(own))
        if not _is_close(one, other)
    ]


def _measures(lineage: Lineage) -> dict[str, Any]:
    members = {
        f"seed {m.seed} fold {m.fold_id}": m.model_dump(include=RESULT_FIELDS)
        for m in lineage.members
    }
    return {"metrics": lineage.metrics} | members


def _is_close(one: Any, other: Any) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return False  # only differing values are compared here
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=RESULT_TOLERANCE, abs_tol=RESULT_TOLERANCE)


def decision_key(subject: Mapping[str, str]) -> dict[str, str]:
    """Return the roles of a receipt's subject that identify the decision; all must be present."""
    missing = [role for role in DECISION_ROLES if not subject.get(role)]
    if missing:
        raise ContractError(
            f"A promotion receipt must name candidate, reference and window in its subject; "
            f"{', '.join(missing)} is missing.",
            fix="Add the digests (reference 'baseline' when nothing is in production).",
        )
    return {role: subject[role] for role in DECISION_ROLES}


def require_matching_receipt(receipt: Receipt, key: Mapping[str, str]) -> None:
    """Reject a receipt that is not a promotion receipt about the given decision."""
    wrong = [role for role, digest in key.items() if receipt.subject.get(role) != digest]
    if receipt.gate != "promotion" or wrong:
        raise ContractError(
            f"A promotion receipt about the requested decision is required, got a receipt of the "
            f"{receipt.gate} gate about another {', '.join(wrong) or 'subject'}.",
            fix="Evaluate the requested candidate, reference and window, then write the receipt.",
        )


def require_same_decision(decided: Receipt, receipt: Receipt) -> None:
    """Reject a receipt that contradicts the stored decision."""
    if decided.digest != receipt.digest:
        raise ContractError(
            f"The decision on this candidate, window and reference is final "
            f"({decided.outcome}, receipt {decided.digest[:12]}), but another receipt "
            f"({receipt.outcome}, {receipt.digest[:12]}) was passed.",
            cause="Repeating an evaluation until it passes would invalidate the gate's error rate.",
            fix="Use the receipt that the ledger returns, or evaluate on a newer window.",
        )


def require_storable_text(text: str, *, what: str) -> None:
    """Reject text that some databases cannot store: undecodable bytes and NUL characters."""
    if "\0" in text:
        raise ContractError(
            f"The {what} must not contain a NUL character, got one at {text.index(chr(0))}.",
            fix="Remove it.",
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ContractError(
            f"The {what} must be text in UTF-8, got {text[:80]!r}.",
            fix="Enter it again in a terminal with UTF-8 encoding.",
        ) from None


def require_past(when: datetime, *, now: datetime) -> None:
    """Reject a time without a time zone, or in the future."""
    if when.tzinfo is None:
        raise ContractError(
            f"A time must have a time zone, got {when.isoformat()}.",
            fix=f"Add the time zone: {when.isoformat()}Z for UTC, or {when.isoformat()}+02:00",
        )
    if not when <= now:
        raise ContractError(
            f"The time {when.isoformat()} is in the future; now is {now.isoformat()}.",
            fix="Use a time in the past.",
        )


def unknown_version_error(model: str, number: int | None, names: Sequence[str]) -> UnknownVersion:
    """Return the error for an unknown model or version, with the known models."""
    if model not in names:
        known = f" Known: {', '.join(names)}." if names else " It has no models yet."
        return UnknownVersion(
            f"The registry has no model {model!r}.{suggest_nearest(model, list(names))}{known}",
            fix="Use a known name, or run the pipeline of the model first.",
        )
    return UnknownVersion(
        f"{model} has no version {number}.", fix=f"List the versions: sluice registry list {model}"
    )
