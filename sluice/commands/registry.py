"""``sluice registry``: look at versions, move the production pointer, check what is stored."""

import getpass
import json
import math
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from sluice.artifacts import ArtifactStore
from sluice.commands.output import results
from sluice.errors import IntegrityError, UnknownVersion
from sluice.home import Home
from sluice.registry import display
from sluice.registry.ledger import Ledger
from sluice.registry.records import Promotion, Version

Model = Annotated[str, typer.Argument(help="Name of the pipeline.", show_default=False)]
AnyModel = Annotated[
    str | None, typer.Argument(help="Name of the pipeline; all when left out.", show_default=False)
]
Number = Annotated[int, typer.Argument(min=1, help="Number of the version.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the history.", show_default=False)]
Actor = Annotated[
    str | None,
    typer.Option(
        "--actor",
        envvar="SLUICE_ACTOR",
        help="Who, for the history; the user of the operating system when left out.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add ``registry`` and its commands to the command line."""
    group = typer.Typer(
        name="registry",
        help="Versions of models: what is in production, why, and how to go back.",
        epilog="Example: sluice registry show sp500_volatility",
        no_args_is_help=True,
    )
    for name, command, example in (
        ("list", list_versions, "list sp500_volatility"),
        ("show", show, "show sp500_volatility 2"),
        ("history", history, "history sp500_volatility"),
        ("promote", promote, "promote sp500_volatility 2 --reason 'agreed in review'"),
        ("rollback", rollback, "rollback sp500_volatility --reason 'errors since noon'"),
        ("verify", verify, "verify"),
    ):
        group.command(name, epilog=f"Example: sluice registry {example}")(command)
    app.add_typer(group)


def list_versions(model: AnyModel = None, as_json: AsJson = False) -> None:
    """List versions and their states."""
    with _open() as ledger:
        names = ledger.models() if model is None else [_known(ledger, model)]
        versions = [version for name in names for version in ledger.versions(name)]
    if as_json:
        _print_json([_brief(version) for version in versions])
    elif versions:
        _print(display.version_list(versions))
    else:
        _print(Text("The registry holds no version yet. Run a pipeline first: sluice run"))


def show(
    model: Model,
    version: Annotated[
        int | None,
        typer.Argument(
            min=1,
            help="Number of the version; the one in production, or else the newest, when left out.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one version: state, the gate's numbers, lineage, metrics, receipts."""
    with _open() as ledger:
        found = _chosen(ledger, model, version)
        receipts = [linked.receipt for linked in ledger.receipts(model, found.number)]
        judged = [receipt for receipt in receipts if receipt.gate == "promotion"]
        digest = judged[-1].subject.get("reference", "") if judged else ""
        reference = ledger.version_of(model, digest)
    if as_json:
        filed = [r.model_dump(mode="json") | {"digest": r.digest} for r in receipts]
        _print_json(found.model_dump(mode="json") | {"receipts": filed})
    else:
        _print(display.version_page(found, receipts, reference=reference))


def history(model: Model, as_json: AsJson = False) -> None:
    """Show who registered, promoted and rolled back what, when and why."""
    with _open() as ledger:
        entries = ledger.history(_known(ledger, model))
    if as_json:
        _print_json([entry.model_dump(mode="json") for entry in entries])
    else:
        _print(display.history_table(entries))


def promote(
    model: Model,
    version: Number,
    reason: Reason,
    actor: Actor = None,
    reinstate: Annotated[
        bool,
        typer.Option(
            "--reinstate",
            help="Accept a version that was rolled back since its gate passed. Gates still apply.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put a version into production, on the receipts recorded for it."""
    with _open() as ledger:
        done = ledger.promote(
            model,
            version,
            expected=ledger.production_number(model),
            actor=actor or current_user(),
            reason=reason,
            store=_store(),
            reinstate=reinstate,
        )
    _print_move(done, as_json=as_json)


def rollback(model: Model, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """Put the production version before the present one back.

    Repeat it to go further back. It never returns to a version that was rolled back.
    """
    with _open() as ledger:
        production = ledger.production_number(_known(ledger, model))
        if production is None:
            raise UnknownVersion(
                f"{model} has nothing in production to roll back.",
                fix=f"See what there is: sluice registry list {model}",
            )
        done = ledger.rollback(
            model,
            expected=production,
            actor=actor or current_user(),
            reason=reason,
            store=_store(),
        )
    _print_move(done, as_json=as_json)


def verify(model: AnyModel = None, as_json: AsJson = False) -> None:
    """Check that everything stored is what it says it is: artifacts, receipts, history."""
    with _open() as ledger:
        findings = ledger.verify(model, store=_store())
        names = ledger.models() if model is None else [model]
        # Damaged lineage is a finding, and versions() would stop at it.
        num_versions = 0 if findings else sum(len(ledger.versions(name)) for name in names)
    if as_json:
        _print_json({"findings": [finding.model_dump(mode="json") for finding in findings]})
        if findings:
            raise typer.Exit(IntegrityError.exit_code)
    elif findings:
        _print(display.findings_table(findings))
    else:
        plural = "" if num_versions == 1 else "s"
        _print(Text(f"Nothing wrong found in {num_versions} version{plural}."))
    if findings:
        raise IntegrityError(
            f"The registry does not hold together: {len(findings)} "
            f"finding{'' if len(findings) == 1 else 's'}.",
            fix="Do what the list says, then verify again.",
        )


def current_user() -> str:
    """Return the name of the operating system's user, or its number when it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without an entry
        return f"uid {os.getuid()}"


def _home() -> Home:
    return Home.from_environment(os.environ, cwd=Path.cwd())


def _open() -> Ledger:
    return Ledger.open(_home().registry_url, clock=lambda: datetime.now(UTC), create=False)


def _store() -> ArtifactStore:
    return ArtifactStore(_home().artifacts)


def _known(ledger: Ledger, model: str) -> str:
    """Return the model's name, or say which names there are."""
    if model not in ledger.models():
        ledger.version(model, 1)  # raises, and names what there is
    return model


def _chosen(ledger: Ledger, model: str, number: int | None) -> Version:
    if number is None:
        number = ledger.production_number(model)
    if number is None:
        numbers = [version.number for version in ledger.versions(model)]
        number = max(numbers, default=1)
    return ledger.version(model, number)


def _brief(version: Version) -> dict[str, Any]:
    brief = version.model_dump(
        mode="json", include={"model", "number", "state", "candidate", "registered_at"}
    )
    return brief | {"metrics": version.lineage.metrics}


def _print(content: RenderableType) -> None:
    results(markup=False).print(content)


def _print_move(done: Promotion, *, as_json: bool) -> None:
    if as_json:
        _print_json(done.model_dump(mode="json") | {"summary": done.summary})
    else:
        _print(Text(done.summary))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(_finite(value), indent=2) + "\n")


def _finite(value: Any) -> Any:
    """Replace what JSON cannot hold by its name: NaN, Infinity, -Infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
