"""Defines the layout of the state folder ``SLUICE_HOME``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.base.errors import SettingsError
from sluice.base.files import mark_private

DEFAULT_HOME = ".sluice"
"""State folder if ``SLUICE_HOME`` is not set, relative to the working folder."""


@dataclass(frozen=True, slots=True)
class Home:
    """Paths inside the state folder ``SLUICE_HOME``."""

    root: Path
    """The state folder."""

    registry_url: str
    """Database URL of the registry."""

    registry_key: Path | None = None
    """File of the key that signs the registry's log; None if the log is not signed."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, cwd: Path) -> "Home":
        """Read ``SLUICE_HOME``, ``SLUICE_REGISTRY_URL`` and ``SLUICE_REGISTRY_KEY``.

        This method does not create the folder. The first write creates it with permissions 0700.

        Raises:
            SettingsError: ``SLUICE_HOME`` is a URL.
        """
        home = environ.get("SLUICE_HOME") or DEFAULT_HOME
        if "://" in home:
            raise SettingsError(
                f"SLUICE_HOME must be a folder of this machine, got the URL {home!r}.",
                cause="State is written with atomic renames and file locks, which object stores "
                "do not support.",
                fix="Set a local folder; SLUICE_REGISTRY_URL may be the URL of a shared "
                "PostgreSQL database.",
            )
        root = (cwd / Path(home).expanduser()).resolve()
        # The folder contains rows, models, client samples and database passwords.
        mark_private(root)
        url = environ.get("SLUICE_REGISTRY_URL") or f"sqlite:///{root / 'registry.db'}"
        key = environ.get("SLUICE_REGISTRY_KEY")
        return cls(root=root, registry_url=url, registry_key=(cwd / key).resolve() if key else None)

    @property
    def dagster(self) -> Path:
        """Dagster's home folder: run history, event log, schedules."""
        return self.root / "dagster"

    @property
    def artifacts(self) -> Path:
        """Content-addressed files, named by SHA-256."""
        return self.root / "artifacts"

    @property
    def records(self) -> Path:
        """Latest value of every asset, as JSON."""
        return self.root / "records"

    @property
    def runs(self) -> Path:
        """Fold runs: checkpoints and event logs."""
        return self.root / "runs"

    @property
    def run_records(self) -> Path:
        """Run records (command, settings, environment): one file per Dagster run."""
        return self.root / "run_records"

    @property
    def searches(self) -> Path:
        """Journals and checkpoints of hyperparameter searches."""
        return self.root / "searches"

    @property
    def traces(self) -> Path:
        """Traces of training programs: one folder per run, one subfolder per process."""
        return self.root / "traces"

    @property
    def gates(self) -> Path:
        """Event logs of runs of the POC gate."""
        return self.root / "gates"

    @property
    def suites(self) -> Path:
        """Index of the regression suites: one folder per pipeline. The rows are artifacts."""
        return self.root / "suites"

    @property
    def generated(self) -> Path:
        """Data files that shipped pipelines generate."""
        return self.root / "generated"

    @property
    def reports(self) -> Path:
        """HTML reports."""
        return self.root / "reports"

    @property
    def wandb(self) -> Path:
        """Offline Weights & Biases runs."""
        return self.root / "wandb"

    @property
    def alerts(self) -> Path:
        """Alerts: one JSON object per line."""
        return self.root / "alerts.jsonl"
