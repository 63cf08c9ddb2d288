"""What every registry command needs: the ledger, the store, who is asking, and printing."""

import getpass
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, UnknownVersion
from sluice.base.home import Home
from sluice.cli.output import results
from sluice.registry.admission import require_text
from sluice.registry.ledger import Ledger
from sluice.registry.records import Version
from sluice.registry.signing import SigningKey

if TYPE_CHECKING:
    from sluice.registry.rollouts import RolloutLedger


def as_text(parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Return what was typed, when it can be written down."""
    if value is not None:
        require_text(value, what=str(parameter.name))
    return value


Model = Annotated[
    str, typer.Argument(help="Name of the pipeline.", callback=as_text, show_default=False)
]
AnyModel = Annotated[
    str | None,
    typer.Argument(
        help="Name of the pipeline; all when left out.", callback=as_text, show_default=False
    ),
]
Number = Annotated[int, typer.Argument(min=1, help="Number of the version.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Reason = Annotated[
    str,
    typer.Option("--reason", help="Why, for the history.", callback=as_text, show_default=False),
]
Actor = Annotated[
    str | None,
    typer.Option(
        "--actor",
        envvar="SLUICE_ACTOR",
        help="Who, for the history; the user of the operating system when left out.",
        callback=as_text,
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        envvar="SLUICE_REGISTRY_KEY",
        help="File with the secret that signs and verifies; nothing is signed without one.",
        show_default=False,
    ),
]


def as_moment(text: str) -> datetime:
    """Return the moment that was typed in ISO 8601."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ContractError(
            f"A moment in ISO 8601 is required, got {text!r}.",
            fix="Write it like 2026-03-14T09:00:00Z",
        ) from None


def current_user() -> str:
    """Return the name of the operating system's user, or its number when it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without an entry
        return f"uid {os.getuid()}"


def _home() -> Home:
    return Home.from_environment(os.environ, cwd=Path.cwd())


def open_ledger(key: Path | None = None, *, create: bool = False) -> Ledger:
    """Open the registry; with a key file every change is signed."""
    return Ledger.open(
        _home().registry_url,
        clock=lambda: datetime.now(UTC),
        create=create,
        key=read_key(key),
    )


def open_rollouts(key: Path | None = None) -> "RolloutLedger":
    """Open the registry that is there, with the rollouts of its models."""
    from sluice.registry.rollouts import RolloutLedger

    return RolloutLedger.open(
        _home().registry_url,
        clock=lambda: datetime.now(UTC),
        create=False,
        key=read_key(key),
    )


def read_key(path: Path | None) -> SigningKey | None:
    """Read the key file, when there is one."""
    return None if path is None else SigningKey.read(path)


def artifact_store() -> ArtifactStore:
    """Return the store beside the registry."""
    return ArtifactStore(_home().artifacts)


def pipeline_code(model: str) -> tuple[str, ...]:
    """Return the import paths that the pipeline of this name has; none when there is no such one.

    Raises:
        SettingsError: The pipeline's file is wrong.
    """
    from sluice.config.pipeline import defs_folder, find_pipeline, known_pipelines

    if model not in known_pipelines(defs_folder()):
        return ()
    settings = find_pipeline(model, defs_folder())
    return (settings.workload, settings.model.architecture)


def known(ledger: Ledger, model: str) -> str:
    """Return the model's name, or say which names there are."""
    if model not in ledger.models():
        ledger.version(model, 1)  # raises, and names what there is
    return model


def newest_own(ledger: Ledger, model: str) -> Version:
    """Return the newest version that was trained here; an import has to be named by its number.

    Raises:
        UnknownVersion: There is none.
    """
    versions = ledger.versions(known(ledger, model))
    own = [version for version in versions if not version.is_imported]
    if not own:
        imported = ", ".join(str(version.number) for version in versions)
        raise UnknownVersion(
            f"A version of {model} that was trained here is required, and the registry holds only "
            f"imported ones: {imported}.",
            cause="A version that came in a file is used only where its number is given.",
            fix=f"Give its number, or train one: sluice run {model}",
        )
    return own[-1]


def show_result(content: RenderableType) -> None:
    """Print for people."""
    results(markup=False).print(content)
