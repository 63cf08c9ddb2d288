"""Options and helpers shared by the registry commands: ledger, store, user, output."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, UnknownVersion
from sluice.base.home import Home
from sluice.cli.output import SafeConsole, results_console
from sluice.registry.ledger import Ledger
from sluice.registry.records import Version
from sluice.registry.signing import SigningKey
from sluice.registry.validation import require_storable_text

if TYPE_CHECKING:
    from sluice.registry.rollouts import RolloutLedger


def check_storable(parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Return the text of an option after a check that it can be stored; None stays None."""
    if value is not None:
        require_storable_text(value, what=str(parameter.name))
    return value


Model = Annotated[
    str, typer.Argument(help="Name of the pipeline.", callback=check_storable, show_default=False)
]
OptionalModel = Annotated[
    str | None,
    typer.Argument(
        help="Name of the pipeline. Default: all.", callback=check_storable, show_default=False
    ),
]
VersionNumber = Annotated[
    int, typer.Argument(min=1, help="Number of the version.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Reason = Annotated[
    str,
    typer.Option(
        "--reason", help="Reason, for the history.", callback=check_storable, show_default=False
    ),
]
Actor = Annotated[
    str | None,
    typer.Option(
        "--actor",
        envvar="SLUICE_ACTOR",
        help="Person who makes the change, for the history. Default: the user of the operating "
        "system.",
        callback=check_storable,
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        envvar="SLUICE_REGISTRY_KEY",
        help="File with the secret key that signs changes and verifies signatures. Without a key, "
        "nothing is signed.",
        show_default=False,
    ),
]


def parse_time(text: str) -> datetime:
    """Parse a point in time in ISO 8601.

    Raises:
        ContractError: The text is not a time in this format.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ContractError(
            f"A point in time in ISO 8601 is required, got {text!r}.",
            fix="Write it like 2026-03-14T09:00:00Z",
        ) from None


def _home() -> Home:
    return Home.from_environment(os.environ, cwd=Path.cwd())


def open_ledger(key: Path | None = None, *, create: bool = False) -> Ledger:
    """Open the registry. If ``key`` is given, every change is signed with this key file."""
    return Ledger.open(
        _home().registry_url,
        clock=lambda: datetime.now(UTC),
        create=create,
        key=read_key(key),
    )


def open_rollouts(key: Path | None = None) -> "RolloutLedger":
    """Open the existing registry, with the rollouts of its models."""
    from sluice.registry.rollouts import RolloutLedger

    return RolloutLedger.open(
        _home().registry_url,
        clock=lambda: datetime.now(UTC),
        create=False,
        key=read_key(key),
    )


def read_key(path: Path | None) -> SigningKey | None:
    """Return the key in a file; None if ``path`` is None."""
    return None if path is None else SigningKey.read(path)


def artifact_store() -> ArtifactStore:
    """Return the artifact store in ``SLUICE_HOME``."""
    return ArtifactStore(_home().artifacts)


def pipeline_import_paths(model: str) -> tuple[str, ...]:
    """Return the import paths of workload and architecture of the shipped pipeline ``model``.

    The result is empty if no shipped pipeline has this name.

    Raises:
        SettingsError: The pipeline's file is invalid.
    """
    from sluice.config.pipeline import defs_folder, find_pipeline, known_pipelines

    if model not in known_pipelines(defs_folder()):
        return ()
    settings = find_pipeline(model, defs_folder())
    return (settings.workload, settings.model.architecture)


def require_model(ledger: Ledger, model: str) -> str:
    """Return the name of a model after a check that the registry contains the model.

    Raises:
        UnknownVersion: The registry has no such model.
    """
    if model not in ledger.models():
        ledger.version(model, 1)  # raises an error that lists the known names
    return model


def newest_trained_here(ledger: Ledger, model: str) -> Version:
    """Return the newest version that was trained here; imported versions are ignored.

    Raises:
        UnknownVersion: No such version exists.
    """
    versions = ledger.versions(require_model(ledger, model))
    local_versions = [version for version in versions if not version.is_imported]
    if not local_versions:
        imported_numbers = ", ".join(str(version.number) for version in versions)
        raise UnknownVersion(
            f"A version of {model} that was trained here is required, and the registry has only "
            f"imported versions: {imported_numbers}.",
            cause="An imported version is used only when its number is given.",
            fix=f"Give the number of a version, or train a version: sluice run {model}",
        )
    return local_versions[-1]


def show_result(content: RenderableType) -> None:
    """Print a result on stdout."""
    results_console(markup=False).print(content)


def show_on_stderr(content: RenderableType) -> None:
    """Print on stderr what a question is about, if stdout must contain only JSON."""
    SafeConsole(stderr=True, markup=False, highlight=False, emoji=False).print(content)
