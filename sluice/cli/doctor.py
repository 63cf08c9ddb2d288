"""``sluice doctor``: checks that everything a run needs is available."""

import json
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field
from rich.markup import escape
from rich.table import Table

from sluice.base.artifacts import ArtifactStore
from sluice.base.cpu_count import count_cores
from sluice.base.errors import EXIT_GATE_BLOCKED, SluiceError, UnknownVersion
from sluice.base.files import PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE, write_atomic
from sluice.base.home import Home
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record, Settings
from sluice.cli.output import results_console
from sluice.cli.training_doctor import add_training_doctors
from sluice.cluster.ray_token import ray_token_path

if TYPE_CHECKING:
    from sluice.registry.records import Version

_GROUP_NAME = "doctor"

PACKAGES = (
    "dagster",
    "dagster-webserver",
    "torch",
    "pandas",
    "great-expectations",
    "wandb",
    "ray",
    "arch",
    "sqlalchemy",
)
"""Packages that must be installed."""


class DoctorSettings(Settings):
    """Limits of ``sluice doctor``."""

    min_free_gib: float = Field(1.0, gt=0, description="Minimum free disk space [GiB].")


class Examination(Record):
    """Result of one check of the installation."""

    name: str
    healthy: bool
    seen: str = Field(description="Observed state, or the problem.")
    fix: str = Field("", description="What to do about the problem; empty without a problem.")


def examine(
    home: Home, shipped_folder: Path, settings: DoctorSettings, *, user_files: Sequence[Path] = ()
) -> Iterator[Examination]:
    """Run the checks one after the other, and yield the result of each.

    Args:
        home: Paths of the state folder.
        shipped_folder: Folder of the shipped pipelines.
        settings: Limits of the checks.
        user_files: Pipeline files of the user, checked in place of the shipped pipelines.
    """
    from sluice.config.pipeline import known_pipelines

    is_supported = sys.version_info >= (3, 11)
    yield Examination(
        name="python",
        healthy=is_supported,
        seen=sys.version.split()[0],
        fix="" if is_supported else "Install Python 3.11 or newer, then install Sluice again.",
    )
    for package in PACKAGES:
        yield _run_check(f"package {package}", lambda p=package: _installed_version(p))  # type: ignore[misc]
    yield _run_check("state folder", lambda: _check_writable(home))
    yield _run_check("permissions", lambda: _check_private(home))
    yield _run_check("free disk", lambda: _check_free_disk(home, settings))
    yield _run_check("registry", lambda: _check_registry(home))
    for production in _production_versions(home):
        yield _run_check(
            f"production of {production.model}",
            lambda p=production: _check_served_version(home, p),  # type: ignore[misc]
        )
    yield _run_check("devices", _describe_devices)
    for name in map(str, user_files) if user_files else known_pipelines(shipped_folder):
        yield _run_check(f"pipeline {name}", lambda n=name: _check_pipeline(n, shipped_folder))  # type: ignore[misc]


def get_doctor_group(app: typer.Typer) -> typer.Typer:
    """Return the command group ``sluice doctor``, which is added to ``app`` if it is missing."""
    for existing in app.registered_groups:
        if existing.name == _GROUP_NAME and existing.typer_instance is not None:
            return existing.typer_instance
    group = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
    app.add_typer(group, name=_GROUP_NAME)
    return group


def register(app: typer.Typer) -> None:
    """Add ``sluice doctor`` and its subcommands for trainings."""

    @get_doctor_group(app).callback(invoke_without_command=True)
    def doctor(
        context: typer.Context,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Check that everything a run needs is available; each problem is printed with its fix.

        If the working folder contains pipeline files, these are checked. Otherwise the shipped
        pipelines are checked.

        Example: sluice doctor
        """
        if context.invoked_subcommand is None:
            _examine_all(as_json=as_json)
        elif as_json:
            raise typer.BadParameter(
                f"Give --json after '{context.invoked_subcommand}'.", ctx=context
            )

    add_training_doctors(get_doctor_group(app))


def _examine_all(*, as_json: bool) -> None:
    from sluice.config.pipeline import defs_folder
    from sluice.config.pipeline_file import pipeline_files

    user_files = [file.relative_to(Path.cwd()) for file in pipeline_files(Path.cwd())]
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    examinations = list(examine(home, defs_folder(), DoctorSettings(), user_files=user_files))
    if as_json:
        print(json.dumps([examination.model_dump() for examination in examinations], indent=1))
    else:
        results_console().print(_table(examinations))
    if not all(examination.healthy for examination in examinations):
        raise typer.Exit(EXIT_GATE_BLOCKED)


def _run_check(name: str, check: Callable[[], str]) -> Examination:
    try:
        return Examination(name=name, healthy=True, seen=check())
    except SluiceError as error:
        return Examination(name=name, healthy=False, seen=error.what, fix=error.fix)
    except (OSError, ImportError) as error:
        return Examination(
            name=name,
            healthy=False,
            seen=f"{type(error).__name__}: {error}",
            fix="Correct the named problem. If it is a package, install Sluice again.",
        )


def _installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise SluiceError(
            f"{package} is not installed.",
            fix="Run 'make setup' in the checkout, or install Sluice again from the checkout or "
            "its wheel.",
        ) from None


def _check_writable(home: Home) -> str:
    test_file = home.root / ".doctor"
    write_atomic(test_file, b"")
    test_file.unlink()
    return str(home.root)


def _check_private(home: Home) -> str:
    """Check that only the owner can access the state folder and the files with secrets."""
    required_modes = {
        home.root: PRIVATE_FOLDER_MODE,
        home.registry_key: PRIVATE_FILE_MODE,
        ray_token_path(): PRIVATE_FILE_MODE,
    }
    for path, mode in required_modes.items():
        if path is None or not path.exists():
            continue
        permissions = stat.S_IMODE(path.stat().st_mode)
        if permissions & (stat.S_IRWXG | stat.S_IRWXO):
            raise SluiceError(
                f"{path} must be accessible to its owner only (mode {mode:04o}), got "
                f"{permissions:04o}.",
                fix=f"Run: chmod {mode:o} {shlex.quote(str(path))}",
            )
    return "accessible to its owner only"


def _check_free_disk(home: Home, settings: DoctorSettings) -> str:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free_gib = shutil.disk_usage(folder).free / 2**30
    if free_gib < settings.min_free_gib:
        raise SluiceError(
            f"{settings.min_free_gib} GiB of free disk space are required at {folder}, got "
            f"{free_gib:.1f} GiB.",
            fix="Free disk space or point SLUICE_HOME at a larger disk.",
        )
    return f"{free_gib:.0f} GiB"


def _check_registry(home: Home) -> str:
    from sluice.registry.ledger import Ledger

    try:
        read_only_ledger = Ledger.open(
            home.registry_url, clock=lambda: datetime.now(UTC), create=False
        )
    except UnknownVersion:
        return "none yet; the first run creates it"
    with read_only_ledger as ledger:
        findings = ledger.verify(None, store=ArtifactStore(home.artifacts))
        models = ledger.models()
    if findings:
        raise SluiceError(
            f"{pluralize(len(findings), 'finding')}; the first: {findings[0].what}",
            fix=f"{findings[0].fix} To list all of them: sluice registry verify",
        )
    return f"{pluralize(len(models), 'model')}, all digests match"


def _production_versions(home: Home) -> "list[Version]":
    """Return all versions in production; an empty list if the registry cannot be read."""
    from sluice.registry.ledger import Ledger

    try:
        with Ledger.open(
            home.registry_url, clock=lambda: datetime.now(UTC), create=False
        ) as ledger:
            versions = [ledger.production(model) for model in ledger.models()]
    except SluiceError:  # the check of the registry reports the error
        return []
    return [production for production in versions if production is not None]


def _check_served_version(home: Home, production: "Version") -> str:
    """Load a version as ``sluice serve`` does; report removed settings and changed code."""
    from sluice.registry.loading import compare_version, removed_settings
    from sluice.serving.deployed import load_deployed, require_finite

    version_text = f"version {production.number}"
    require_finite(load_deployed(production, ArtifactStore(home.artifacts)))
    removed_text = "".join(
        f"; its setting '{removed.name}' no longer exists: {removed.effect}"
        for removed in removed_settings(production)
    )
    warning = compare_version(production).warning(version_text)
    return f"{version_text} loads{removed_text}" + (f"; {warning}" if warning else "")


def _describe_devices() -> str:
    import torch

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return f"CPU only, {pluralize(count_cores(), 'core')}"


def _check_pipeline(name: str, shipped_folder: Path) -> str:
    from sluice.config.pipeline import find_pipeline
    from sluice.config.resolved import resolve

    settings = find_pipeline(name, shipped_folder)
    workload = resolve(settings).workload
    seeds = pluralize(len(settings.seeds), "seed")
    return f"{type(workload).__name__}, {settings.model.architecture}, {seeds}"


def _table(examinations: list[Examination]) -> Table:
    table = Table("", "check", "result", "do", box=None, pad_edge=False)
    for examination in examinations:
        status = "[green]ok[/green]" if examination.healthy else "[red]no[/red]"
        fix = "" if examination.healthy else escape(examination.fix)
        table.add_row(status, examination.name, escape(examination.seen), fix)
    return table
