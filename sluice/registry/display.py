"""Formats registry records as rich tables for the terminal.

Strings are wrapped in ``Text``, because rich would interpret brackets in a ``str`` as markup.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sluice.base.digests import short
from sluice.base.pluralize import pluralize
from sluice.base.receipts import Receipt
from sluice.registry.lineage import BASELINE, Lineage
from sluice.registry.records import (
    ApprovalStatus,
    HistoryEntry,
    RegistryFinding,
    Version,
    VersionState,
)
from sluice.registry.unsigned_lines import UnsignedLine

_MAX_COMPLETE_LIST_LENGTH = 12
"""A list with at most this number of values is shown completely."""
_NUM_SHOWN_VALUES = 5
"""Number of values that are shown of a longer list."""
_MAX_CELL_CHARS = 40
"""Maximum length of a text in the table of values [characters]; a longer text is shown above it."""
_GAIN_DEFINITION = (
    "A gain is the loss of the reference minus the loss of the candidate: above 0 is better."
)
_TABLE_PREFIX = "tables "
"""Prefix of the names of table digests in the flattened evidence. In the original evidence, these
digests are in the mapping 'tables', by table name."""
_DIGEST = re.compile(r"[0-9a-f]{64}")

STYLES: Mapping[str, str] = {
    "production": "bold green",
    "staging": "yellow",
    "archived": "dim",
    "pass": "green",
    "PROMOTE": "green",
    "fail": "red",
    "REJECT": "red",
    "insufficient": "yellow",
    "INCONCLUSIVE": "yellow",
    "EQUIVALENT": "yellow",
    "promote": "green",
    "rollback": "yellow",
    "unstage": "yellow",
    "approve": "green",
    "WAITING": "yellow",
}


def version_list(versions: Sequence[Version]) -> Table:
    """Return a table with one row per version."""
    table = _table("Model", "Version", "State", "Candidate", "Registered UTC", "First metrics")
    for version in versions:
        table.add_row(
            Text(version.model),
            Text(str(version.number)),
            styled_label(version.state),
            Text(short(version.candidate)),
            Text(f"{version.registered_at:%Y-%m-%d %H:%M}"),
            Text(_first_metrics_text(version.lineage.metrics)),
        )
    return table


def version_page(
    version: Version,
    receipts: Sequence[Receipt],
    imported_receipts: Sequence[Receipt],
    *,
    reference: Version | None,
    approval: ApprovalStatus,
) -> Group:
    """Return all details of a version: state, gate evidence, lineage, metrics and receipts.

    Args:
        version: The version.
        receipts: Receipts linked to the version, oldest first.
        imported_receipts: Receipts imported with the version, oldest first.
        reference: Reference of the version's last comparison; None if this reference is not a
            registered version.
        approval: Whether the version's promotion requires an approval, and which is recorded.
    """
    title = Text.assemble(
        (version.model, "bold"), f"  version {version.number}  ", styled_label(version.state)
    )
    page: list[RenderableType] = [title]
    promotion_receipts = [receipt for receipt in receipts if receipt.gate == "promotion"]
    if promotion_receipts:
        page += _section("Gate", _verdict_group(promotion_receipts[-1], reference))
    if approval.required or approval.approval is not None:
        page += _section("Approval", _approval_text(approval))
    page += _section("Metrics on the test rows", _name_value_table(version.lineage.metrics))
    page += _section("Lineage", _lineage_table(version.lineage, version.registered_at))
    page += _section("Weights", _member_table(version.lineage))
    page += _section("Receipts", _receipt_table(receipts))
    if imported_receipts:
        imported_title = "Receipts from another registry (not used for decisions here)"
        page += _section(imported_title, _receipt_table(imported_receipts))
    return Group(*page)


def history_table(entries: Sequence[HistoryEntry]) -> Table:
    """Return a table of the history, with the newest entry last."""
    table = _table("When [UTC]", "Action", "Version", "Who", "Why", "Receipt")
    for entry in entries:
        from_text = "" if entry.revision is None else f"{entry.from_version or 'none'} -> "
        table.add_row(
            Text(format_time(entry.at)),
            styled_label(entry.action),
            Text(f"{from_text}{entry.to_version}"),
            Text(entry.actor),
            Text(entry.reason),
            Text(short(entry.receipt) if entry.receipt else ""),
        )
    return table


def unsigned_table(lines: Sequence[UnsignedLine]) -> Table:
    """Return a table of the unsigned log lines with time, actor and content."""
    table = _table("Line", "When [UTC]", "Who", "What was added")
    for line in lines:
        time_text = "" if line.at is None else format_time(line.at)
        cells = (str(line.line), time_text, line.actor, line.what)
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return table


def findings_table(findings: Sequence[RegistryFinding]) -> Table:
    """Return a table of findings, each with its fix."""
    table = _table("Model", "Version", "Problem", "Finding", "Fix")
    for finding in findings:
        version = "" if finding.version is None else str(finding.version)
        cells = (finding.model, version, finding.problem, finding.what, finding.fix)
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return table


def styled_label(name: VersionState | str) -> Text:
    """Return the name of a state, outcome or action in its color; the color adds no information."""
    return Text(name, style=STYLES.get(name, ""), no_wrap=True)


def format_time(at: datetime) -> str:
    """Return a time in the format year-month-day hours:minutes:seconds."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


def format_value(value: Any) -> str:
    """Return a value for display; '-' if unknown.

    Floats have four significant digits. Floats with an integer value below 1e15 have all digits.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isnan(value):
            return "-"
        is_integer = math.isfinite(value) and value == int(value) and abs(value) < 1e15
        return f"{value:.0f}" if is_integer else f"{value:.4g}"
    return "-" if value is None else str(value)


def _section(name: str, body: RenderableType) -> list[RenderableType]:
    return [Text(""), Text(name, style="bold"), Padding(body, (0, 0, 0, 2))]


def _verdict_group(receipt: Receipt, reference: Version | None) -> Group:
    """Return the verdict, the values of its evidence, and a table for each list of mappings."""
    digest = receipt.subject.get("reference", "")
    reference_name = BASELINE if digest == BASELINE else f"candidate {short(digest)}"
    if reference is not None:
        reference_name = f"version {reference.number} ({short(digest)})"
    # Subject, outcome and reason are shown elsewhere. "rows" contains the hashes of all rows, which
    # no person reads.
    omitted_names = {*receipt.subject, "outcome", "reason", "rows"}
    # The symptoms of the training are omitted if the reason already contains them.
    symptoms = receipt.evidence.get("symptoms") or ()
    if all(str(symptom) in receipt.reason for symptom in symptoms):
        omitted_names.add("symptoms")
    evidence = {
        name: value for name, value in receipt.evidence.items() if name not in omitted_names
    }
    values = _flatten(evidence)
    long_texts = {
        name: value
        for name, value in values.items()
        if isinstance(value, str) and len(value) > _MAX_CELL_CHARS
    }
    content: list[RenderableType] = [
        Text.assemble(
            styled_label(receipt.outcome), f" against {reference_name}. {receipt.reason}"
        ),
        *(
            Text(f"{_label(name)}: {_shorten_digest(long_texts[name])}")
            for name in sorted(long_texts, key=lambda name: name.startswith(_TABLE_PREFIX))
        ),
        *([Text(_GAIN_DEFINITION, style="dim")] if "gain" in evidence else []),
        Text(""),
        _name_value_table(
            {name: value for name, value in values.items() if name not in long_texts}
        ),
    ]
    for name, value in evidence.items():
        if _is_list_of_mappings(value):
            content += [Text(""), Text(_label(name), style="italic"), _table_of_mappings(value)]
    return Group(*content)


def _approval_text(status: ApprovalStatus) -> Text:
    """Return who approved the promotion and when the approval expires, or what is missing."""
    if status.problem:
        return Text.assemble(styled_label("WAITING"), f" {status.problem} {status.remedy}")
    assert status.approval is not None, "without an approval, a problem must be set"
    return Text(status.approval.summary)


def _lineage_table(lineage: Lineage, registered_at: datetime) -> Table:
    git, environment = lineage.git, lineage.environment
    text_by_dirty_flag = {
        True: "with uncommitted changes",
        False: "clean",
        None: "not a git checkout",
    }
    reference = lineage.reference
    device = f"{environment.device}, {pluralize(environment.cpu_count, 'core')}"
    if environment.device_count:
        device = f"{environment.device_count} x {device}"
    libraries = ", ".join(f"{name} {version}" for name, version in environment.libraries.items())
    grid = _grid()
    for name, value in (
        ("candidate", lineage.candidate),
        ("data", lineage.data),
        ("config", lineage.config),
        ("code", lineage.code),
        ("git", f"{git.commit} ({text_by_dirty_flag[git.dirty]})"),
        ("compared with", reference),
        ("seeds", ", ".join(map(str, lineage.seeds))),
        (
            "training",
            f"{lineage.training_seconds:.1f} s for {pluralize(len(lineage.members), 'member')}",
        ),
        ("device", device),
        ("python", f"{environment.python} on {environment.platform}"),
        ("libraries", libraries),
        ("created", f"{format_time(lineage.created_at)} UTC"),
        ("registered", f"{format_time(registered_at)} UTC"),
    ):
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def _member_table(lineage: Lineage) -> Table:
    table = _table("Seed", "Fold", "Best epoch", "Epochs", "Validation loss", "Seconds", "Digest")
    for member in lineage.members:
        table.add_row(
            *(
                Text(format_value(value))
                for value in (
                    member.seed,
                    member.fold_id,
                    member.best_epoch,
                    member.epochs_run,
                    member.val_loss,
                    round(member.seconds, 1),
                    short(member.weights),
                )
            )
        )
    return table


def _receipt_table(receipts: Sequence[Receipt]) -> RenderableType:
    if not receipts:
        return Text("none: this version cannot be promoted", style="yellow")
    table = _table("Gate", "Outcome", "Decided [UTC]", "Digest", "Reason")
    for receipt in receipts:
        table.add_row(
            Text(receipt.gate),
            styled_label(receipt.outcome),
            Text(format_time(receipt.decided_at), no_wrap=True),
            Text(short(receipt.digest), no_wrap=True),
            Text(receipt.reason),
        )
    return table


def _name_value_table(values: Mapping[str, Any]) -> Table:
    """Return a table of names and values, in two columns of pairs."""
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    pairs = [
        (Text(_label(name), style="dim"), Text(format_value(value)))
        for name, value in values.items()
    ]
    num_rows = (len(pairs) + 1) // 2
    for i in range(num_rows):
        right_pair = pairs[num_rows + i] if num_rows + i < len(pairs) else (Text(""), Text(""))
        grid.add_row(*pairs[i], Text("  "), *right_pair)
    return grid


def _flatten(evidence: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their joined names.

    A list becomes a text. A list of mappings is omitted.
    """
    flat_values: dict[str, Any] = {}
    for name, value in evidence.items():
        if isinstance(value, Mapping):
            flat_values |= _flatten(value, f"{prefix}{name} ")
        elif isinstance(value, list | tuple):
            if not _is_list_of_mappings(value):
                flat_values[prefix + name] = _format_list(value)
        else:
            flat_values[prefix + name] = value
    return flat_values


def _shorten_digest(text: str) -> str:
    """Return the short form of a digest; a text that is not a digest is returned unchanged."""
    return short(text) if _DIGEST.fullmatch(text) else text


def _format_list(values: Sequence[Any]) -> str:
    """Return the values of a list as text; of a long list, only the first values."""
    if len(values) <= _MAX_COMPLETE_LIST_LENGTH:
        return ", ".join(format_value(value) for value in values) or "none"
    first_values = ", ".join(format_value(value) for value in values[:_NUM_SHOWN_VALUES])
    return f"{first_values} and {len(values) - _NUM_SHOWN_VALUES:,} more"


def _is_list_of_mappings(value: Any) -> bool:
    """Return whether a value is a non-empty list of mappings; such a list is shown as a table."""
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(row, Mapping) for row in value)
    )


def _table_of_mappings(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = _table(*(_label(name) for name in names))
    for row in rows:
        table.add_row(*(Text(format_value(row.get(name))) for name in names))
    return table


def _first_metrics_text(metrics: Mapping[str, float]) -> str:
    """Return the first two metrics, which fit into a row of the version list."""
    first_metrics = list(metrics.items())[:2]
    return ", ".join(f"{_label(name)} {format_value(value)}" for name, value in first_metrics)


_LABELS: Mapping[str, str] = {
    "seed_se": "standard error of seeds",
    "row_se": "standard error of rows",
    "alpha_of_all": "alpha of all attempts",
    "lacking": "missing evidence",
    "remedy": "advice at the decision",
    "symptoms": "training",
    "p_value": "p-value",
    "fold_id": "fold",
}
"""Labels of the fields of the evidence whose names are unclear, by field name."""


def _label(name: str) -> str:
    if name.startswith(_TABLE_PREFIX):
        return f"digest of {name.removeprefix(_TABLE_PREFIX)}".replace("_", " ")
    return _LABELS.get(name, name.removeprefix("num_").replace("_", " "))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(column), overflow="fold")  # wraps long text instead of truncating it
    return table


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    return grid
