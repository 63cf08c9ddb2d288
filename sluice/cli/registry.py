"""``sluice registry``: shows, promotes and rolls back versions, and verifies the registry."""

from typing import Annotated, Any

import typer
from rich.text import Text

from sluice.base.current_user import current_user
from sluice.base.errors import IntegrityError, UnknownVersion
from sluice.base.pluralize import pluralize
from sluice.base.receipts import Receipt
from sluice.cli import registry_audit, registry_erase, registry_files
from sluice.cli.output import print_json
from sluice.cli.registry_access import (
    Actor,
    AsJson,
    KeyFile,
    Model,
    OptionalModel,
    Reason,
    VersionNumber,
    artifact_store,
    newest_trained_here,
    open_ledger,
    parse_time,
    read_key,
    require_model,
    show_result,
)
from sluice.registry import display
from sluice.registry.ledger import Ledger
from sluice.registry.records import Promotion, RegistryFinding, Version


def register(app: typer.Typer) -> None:
    """Add ``registry`` and its commands to the command line."""
    group = typer.Typer(
        name="registry",
        help="Versions of models: what is in production, why, and how to roll back.",
        epilog="Example: sluice registry show sp500_volatility",
        no_args_is_help=True,
    )
    for name, command, example in (
        ("list", list_versions, "list sp500_volatility"),
        ("show", show, "show sp500_volatility 2"),
        ("history", history, "history sp500_volatility"),
        ("promote", promote, "promote sp500_volatility 2 --reason 'agreed in review'"),
        ("approve", approve, "approve sp500_volatility 2 --reason 'reviewed the errors of March'"),
        ("rollback", rollback, "rollback sp500_volatility --reason 'errors since noon'"),
        ("at", show_production_at, "at sp500_volatility 2026-03-14T09:00:00Z"),
        ("verify", verify, "verify"),
        ("audit", registry_audit.audit, "audit --since 2026-03-14T00:00:00Z > audit.jsonl"),
        ("restore-triggers", restore_triggers, "restore-triggers"),
        (
            "export",
            registry_files.export_file,
            "export sp500_volatility 2 sp500_volatility-2.sluice",
        ),
        ("import", registry_files.import_file, "import sp500_volatility-2.sluice"),
        ("erase", registry_erase.erase, "erase sp500_volatility --user ada"),
        ("new-key", registry_files.new_key, "new-key exports.pem --name team_a"),
        ("sign", registry_files.sign, "sign --key registry.key"),
    ):
        group.command(name, epilog=f"Example: sluice registry {example}")(command)
    app.add_typer(group)


def list_versions(model: OptionalModel = None, as_json: AsJson = False) -> None:
    """List versions and their states."""
    with open_ledger() as ledger:
        names = ledger.models() if model is None else [require_model(ledger, model)]
        versions = [version for name in names for version in ledger.versions(name)]
    if as_json:
        print_json([_version_summary(version) for version in versions])
    elif versions:
        show_result(display.version_list(versions))
    else:
        show_result(Text("The registry has no version yet. Run a pipeline first: sluice run"))


def show(
    model: Model,
    version: Annotated[
        int | None,
        typer.Argument(
            min=1,
            help="Number of the version. Default: the version in production, or without one the "
            "newest version that was trained here.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one version: state, result of the promotion gate, lineage, metrics, receipts."""
    with open_ledger() as ledger:
        selected_version = _select_version(ledger, model, version)
        receipts = [linked.receipt for linked in ledger.receipts(model, selected_version.number)]
        imported_receipts = ledger.imported_receipts(model, selected_version.number)
        decisions = [receipt for receipt in receipts if receipt.gate == "promotion"]
        reference_digest = decisions[-1].subject.get("reference", "") if decisions else ""
        reference = ledger.version_of(model, reference_digest)
        approval = ledger.approval_status(model, selected_version.number)
    if as_json:
        print_json(
            selected_version.model_dump(mode="json")
            | {
                "receipts": [_receipt_fields(receipt) for receipt in receipts],
                "imported_receipts": [_receipt_fields(receipt) for receipt in imported_receipts],
                "approval": approval.model_dump(mode="json"),
            }
        )
    else:
        page = display.version_page(
            selected_version, receipts, imported_receipts, reference=reference, approval=approval
        )
        show_result(page)


def history(model: Model, as_json: AsJson = False) -> None:
    """Show all changes of a model: who registered, promoted or rolled back what, when and why."""
    with open_ledger() as ledger:
        entries = ledger.history(require_model(ledger, model))
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in entries])
    else:
        show_result(display.history_table(entries))


def show_production_at(
    model: Model,
    time: Annotated[
        str,
        typer.Argument(help="ISO 8601 with time zone: 2026-03-14T09:00:00Z", show_default=False),
    ],
    as_json: AsJson = False,
) -> None:
    """Show the version that was in production at a given time, who promoted it and why."""
    timestamp = parse_time(time)
    with open_ledger() as ledger:
        move = ledger.production_at(model, timestamp)
    if as_json:
        print_json(None if move is None else move.model_dump(mode="json"))
    elif move is None:
        show_result(Text(f"{model}: nothing was in production at {timestamp.isoformat()}."))
    else:
        show_result(
            Text(f"{model}: version {move.to_version} was in production since this change:")
        )
        show_result(display.history_table([move]))


def promote(
    model: Model,
    version: VersionNumber,
    reason: Reason,
    actor: Actor = None,
    reinstate: Annotated[
        bool,
        typer.Option(
            "--reinstate",
            help="Promote a version that was rolled back, with its verdict from before the "
            "rollback. All gates still apply.",
        ),
    ] = False,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Promote a version to production, based on its recorded receipts."""
    with open_ledger(key) as ledger:
        promotion = ledger.promote(
            model,
            version,
            expected=ledger.production_number(model),
            actor=actor or current_user(),
            reason=reason,
            store=artifact_store(),
            reinstate=reinstate,
        )
    _print_move(promotion, as_json=as_json)


def approve(
    model: Model,
    version: VersionNumber,
    reason: Reason,
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Approve the promotion of a version whose verdict is PROMOTE.

    An approval is necessary if the pipeline has approval.required or known_keys.yaml has
    two_person_since. An approval applies only to the current verdict and the current production
    version. If actors have keys, sign the approval with your key (--key).
    """
    with open_ledger(key) as ledger:
        receipt = ledger.approve(model, version, actor=actor or current_user(), reason=reason)
    if as_json:
        print_json(_receipt_fields(receipt))
    else:
        approver = receipt.evidence["actor"]
        show_result(Text(f"{model} version {version} is approved by {approver}."))


def rollback(
    model: Model,
    reason: Reason,
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Return to the last good production version.

    If this version cannot be loaded, nothing is changed. Repeat the command to go further back.
    Versions that were rolled back are skipped. The code of the checkout is not changed; the output
    states whether the version was trained with the code of the checkout.
    """
    with open_ledger(key) as ledger:
        production = ledger.production_number(require_model(ledger, model))
        if production is None:
            raise UnknownVersion(
                f"{model} has no version in production to roll back.",
                fix=f"List its versions: sluice registry list {model}",
            )
        move = ledger.rollback(
            model,
            expected=production,
            actor=actor or current_user(),
            reason=reason,
            store=artifact_store(),
        )
    _print_move(move, as_json=as_json)


def verify(model: OptionalModel = None, key: KeyFile = None, as_json: AsJson = False) -> None:
    """Verify everything that is stored: artifacts, receipts, history and the log.

    If no problem is found, the current code is compared with the code digest of the production
    version. Code that cannot be imported is not compared. With a key, every line of the log must be
    signed with this key.
    """
    with open_ledger() as ledger:
        findings = ledger.verify(model, store=artifact_store(), key=read_key(key))
        names = ledger.models() if model is None else [model]
        if not findings:
            productions = [ledger.production(name) for name in names]
            findings = [
                finding for production in productions for finding in _code_findings(production)
            ]
        # Not counted if there are findings, because versions() raises an error on damaged lineage.
        num_versions = 0 if findings else sum(len(ledger.versions(name)) for name in names)
    if as_json:
        print_json({"findings": [finding.model_dump(mode="json") for finding in findings]})
        if findings:
            raise typer.Exit(IntegrityError.exit_code)
    elif findings:
        show_result(display.findings_table(findings))
    else:
        show_result(Text(f"No problem found in {pluralize(num_versions, 'version')}."))
    if findings:
        raise IntegrityError(
            f"Registry and artifacts do not match: {pluralize(len(findings), 'finding')}."
            if all(finding.problem == "artifact" for finding in findings)
            else f"The registry is not consistent: {pluralize(len(findings), 'finding')}.",
            fix="Apply the listed fixes, then verify again.",
        )


def restore_triggers(as_json: AsJson = False) -> None:
    """Verify the log, and create the triggers of append-only tables again.

    Use this command for a database without these triggers, such as a copy that was made without
    triggers. All other triggers on the registry's tables are dropped.
    """
    with open_ledger() as ledger:
        num_created = ledger.restore_triggers()
    if as_json:
        print_json({"triggers": num_created})
    else:
        show_result(Text(f"The log is valid. Created {pluralize(num_created, 'trigger')}."))


def _select_version(ledger: Ledger, model: str, number: int | None) -> Version:
    if number is None:
        number = ledger.production_number(model)
    if number is None:
        return newest_trained_here(ledger, model)
    return ledger.version(model, number)


def _code_findings(production: Version | None) -> list[RegistryFinding]:
    if production is None or production.lineage.code_identity is None:
        return []
    from sluice.registry import loading  # imports torch, which the other commands do not need

    return loading.code_findings(production)


def _receipt_fields(receipt: Receipt) -> dict[str, Any]:
    return receipt.model_dump(mode="json") | {"digest": receipt.digest}


def _version_summary(version: Version) -> dict[str, Any]:
    fields = version.model_dump(
        mode="json", include={"model", "number", "state", "candidate", "registered_at"}
    )
    return fields | {"metrics": version.lineage.metrics}


def _print_move(move: Promotion, *, as_json: bool) -> None:
    if as_json:
        print_json(move.model_dump(mode="json") | {"summary": move.summary})
    else:
        show_result(Text(move.summary))
