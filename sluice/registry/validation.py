"""Validates what callers store in the registry, and creates the errors for invalid input."""

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

MAX_NAME_CHARS = 200
"""Maximum length of a model name [characters]; the database column has this width."""

_MODEL_NAME = re.compile(r"[a-z][a-z0-9_]*")

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
"""Fields of a member that contain results of its training, which follow from its weights."""

RESULT_TOLERANCE = 1e-4
"""Maximum relative difference between results of the same weights on different machines, and
maximum absolute difference of results near 0. Results differ, because machines sum in different
orders."""

MAX_LISTED_DIFFERENCES = 3
"""Maximum number of differences listed in a message or a history entry."""


def require_consistent_lineage(model: str, lineage: Lineage) -> None:
    """Reject a lineage of another model, or a lineage whose content does not match its digests."""
    name_problem = find_name_problem(model)
    if name_problem:
        raise ContractError(
            f"The model name of a candidate is invalid: {name_problem}.",
            fix="Rename the pipeline.",
        )
    if lineage.model != model:
        raise ContractError(
            f"A lineage of model {model!r} is required, got a lineage of model {lineage.model!r}.",
            fix="Register a candidate under the name of the pipeline that trained it.",
        )
    problem = lineage.find_contradiction()
    if problem:
        raise ContractError(
            f"The lineage of a candidate must be consistent, but {problem}.",
            fix="Use the candidate, data, config, code and members of one TrainedModels, with the "
            "settings of its training.",
        )


def find_name_problem(model: str) -> str:
    """Return why a model name is invalid, as a clause; "" if it is valid.

    Names are restricted because they become part of URLs, paths and terminal output.
    """
    if len(model) <= MAX_NAME_CHARS and _MODEL_NAME.fullmatch(model):
        return ""
    return (
        f"a model name must have 1 to {MAX_NAME_CHARS} lower-case letters, digits and underscores, "
        f"and begin with a letter, got {model[:80]!r}"
    )


def require_same_results(imported_lineage: Lineage, new_lineage: Lineage) -> None:
    """Reject a second import of a candidate whose lineage contradicts the first import.

    The candidate digest does not cover the results, and the registry keeps the results of the first
    file. Without this check, a trusted or signed second file would seem to confirm these results.

    Raises:
        ContractError: Results, the reference, the code identity, or an artifact differ. Logs, times
            and the machine may differ.
    """
    differences = _result_differences(imported_lineage, new_lineage)
    if imported_lineage.reference != new_lineage.reference:
        differences.append(
            f"reference was imported as {short(imported_lineage.reference)} and is "
            f"{short(new_lineage.reference)}"
        )
    if imported_lineage.code_identity != new_lineage.code_identity:
        differences.append("the identity of its code differs from the first import")
    differences += [
        f"its {role} differs from the first import"
        for role, _, _ in iter_differences(_artifacts(imported_lineage), _artifacts(new_lineage))
    ]
    if differences:
        raise ContractError(
            f"The candidate {short(imported_lineage.candidate)} was imported before, and this "
            "file must agree with the first file: "
            f"{'; '.join(differences[:MAX_LISTED_DIFFERENCES])}.",
            cause="One of the two files was forged or comes from another training. The registry "
            "keeps the results of the first file.",
            fix="Find out which file is correct. Import that file into a registry that does not "
            "have the candidate, or train the candidate here: local results replace imported "
            "results.",
        )


def registration_reason(reason: str, *, imported_lineage: Lineage, local_lineage: Lineage) -> str:
    """Return the reason for the history entry of a local training of an imported version.

    The text includes the results that differ from the imported results.
    """
    differences = _result_differences(imported_lineage, local_lineage)
    text = f"{reason} here; the local results replace the imported ones"
    if not differences:
        return text
    differences_text = "; ".join(differences[:MAX_LISTED_DIFFERENCES])
    return f"{text}; the imported file had other results: {differences_text}"


def _artifacts(lineage: Lineage) -> dict[str, str]:
    return {role: digest for role, digest in lineage.artifacts.items() if role != "event log"}


def _result_differences(imported_lineage: Lineage, new_lineage: Lineage) -> list[str]:
    return [
        f"{path} was imported as {imported_value} and is {new_value}"
        for path, imported_value, new_value in iter_differences(
            _results(imported_lineage), _results(new_lineage)
        )
        if not _is_close(imported_value, new_value)
    ]


def _results(lineage: Lineage) -> dict[str, Any]:
    members = {
        f"seed {m.seed} fold {m.fold_id}": m.model_dump(include=RESULT_FIELDS)
        for m in lineage.members
    }
    return {"metrics": lineage.metrics} | members


def _is_close(first: Any, second: Any) -> bool:
    if not (isinstance(first, int | float) and isinstance(second, int | float)):
        return False  # the caller passes only values that are not equal
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    return math.isclose(first, second, rel_tol=RESULT_TOLERANCE, abs_tol=RESULT_TOLERANCE)


def decision_key(subject: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of a receipt's subject that identify its decision, by role.

    Raises:
        ContractError: A role is missing.
    """
    missing_roles = [role for role in DECISION_ROLES if not subject.get(role)]
    if missing_roles:
        raise ContractError(
            "A promotion receipt must name candidate, reference and window in its subject, but "
            f"lacks {', '.join(missing_roles)}.",
            fix="Add the missing digests. If nothing is in production, the reference is "
            "'baseline'.",
        )
    return {role: subject[role] for role in DECISION_ROLES}


def require_matching_receipt(receipt: Receipt, expected_digests: Mapping[str, str]) -> None:
    """Reject a receipt that is not a promotion receipt with the given digests by role."""
    wrong_roles = [
        role for role, digest in expected_digests.items() if receipt.subject.get(role) != digest
    ]
    if receipt.gate != "promotion" or wrong_roles:
        subject_text = f" about another {', '.join(wrong_roles)}" if wrong_roles else ""
        raise ContractError(
            f"A promotion receipt about the requested decision is required, got a receipt of the "
            f"{receipt.gate} gate{subject_text}.",
            fix="Evaluate the requested candidate, reference and window, then write the receipt.",
        )


def require_same_decision(stored_decision: Receipt, receipt: Receipt) -> None:
    """Reject a receipt that contradicts the stored decision."""
    if stored_decision.digest != receipt.digest:
        raise ContractError(
            f"The decision on this candidate, window and reference is final "
            f"({stored_decision.outcome}, receipt {stored_decision.digest[:12]}), but another "
            f"receipt ({receipt.outcome}, {receipt.digest[:12]}) was passed.",
            cause="A decision is final, because repeating an evaluation until it passes would "
            "invalidate the error rate of the gate.",
            fix="Use the receipt that the ledger returns, or evaluate on a newer window.",
        )


def require_storable_text(text: str, *, what: str) -> None:
    """Reject text with undecodable bytes or NUL characters, which some databases cannot store."""
    if "\0" in text:
        raise ContractError(
            f"The {what} must not contain a NUL character, got one at position "
            f"{text.index(chr(0))}.",
            fix="Remove the NUL character.",
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ContractError(
            f"The {what} must be text in UTF-8, got {text[:80]!r}.",
            fix=f"Enter the {what} again in a terminal with UTF-8 encoding.",
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


def unknown_version_error(
    model: str, number: int | None, model_names: Sequence[str]
) -> UnknownVersion:
    """Return the error for an unknown model or version.

    Args:
        model: Name of the requested model.
        number: Number of the requested version; None if only the model was requested.
        model_names: Names of all models of the registry.
    """
    if model not in model_names:
        known_text = (
            f" Known: {', '.join(model_names)}." if model_names else " It has no models yet."
        )
        return UnknownVersion(
            f"The registry has no model {model!r}.{suggest_nearest(model, list(model_names))}"
            f"{known_text}",
            fix="Use a known name, or run the pipeline of the model first.",
        )
    return UnknownVersion(
        f"{model} has no version {number}.", fix=f"List the versions: sluice registry list {model}"
    )
