"""Where Sluice keeps its state: one folder, laid out here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.base.errors import SettingsError
from sluice.base.files import keep_private

DEFAULT_HOME = ".sluice"


@dataclass(frozen=True, slots=True)
class Home:
    """The layout of ``SLUICE_HOME``."""

    root: Path
    registry_url: str

    registry_key: Path | None = None
    """File with the secret that signs the registry; nothing is signed without one."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, cwd: Path) -> "Home":
        """Read ``SLUICE_HOME`` (default ``.sluice``), ``SLUICE_REGISTRY_URL`` and ``..._KEY``.

        The folder is not made here; whatever makes it first makes it with permissions 0700.

        Raises:
            SettingsError: ``SLUICE_HOME`` is a URL.
        """
        given = environ.get("SLUICE_HOME") or DEFAULT_HOME
        if "://" in given:
            raise SettingsError(
                f"SLUICE_HOME must be a folder of this machine, got the URL {given!r}.",
                cause="State is written with atomic renames and file locks, which object stores "
                "do not have.",
                fix="Name a local folder; SLUICE_REGISTRY_URL may be a shared PostgreSQL.",
            )
        root = (cwd / Path(given).expanduser()).resolve()
        keep_private(root)  # rows, models, samples of clients and passwords of databases
        url = environ.get("SLUICE_REGISTRY_URL") or f"sqlite:///{root / 'registry.db'}"
        key = environ.get("SLUICE_REGISTRY_KEY")
        return cls(root=root, registry_url=url, registry_key=(cwd / key).resolve() if key else None)

    @property
    def dagster(self) -> Path:
        """Dagster's own home: run history, event log, schedules."""
        return self.root / "dagster"

    @property
    def artifacts(self) -> Path:
        """Content-addressed files, named by SHA-256."""
        return self.root / "artifacts"

    @property
    def records(self) -> Path:
        """The latest value of every asset, as JSON."""
        return self.root / "records"

    @property
    def runs(self) -> Path:
        """Training units: checkpoints and event logs."""
        return self.root / "runs"

    @property
    def run_records(self) -> Path:
        """What was run, on what, by which command: one file a Dagster run."""
        return self.root / "run_records"

    @property
    def searches(self) -> Path:
        """Journals and checkpoints of searches."""
        return self.root / "searches"

    @property
    def traces(self) -> Path:
        """Traces of programs: one folder a run, one in it a process."""
        return self.root / "traces"

    @property
    def gates(self) -> Path:
        """Event logs of POC gates."""
        return self.root / "gates"

    @property
    def suites(self) -> Path:
        """Index of the regression suites: a folder a pipeline; the rows are artifacts."""
        return self.root / "suites"

    @property
    def reports(self) -> Path:
        """Pages for people."""
        return self.root / "reports"

    @property
    def wandb(self) -> Path:
        """Offline Weights & Biases runs."""
        return self.root / "wandb"

    @property
    def alerts(self) -> Path:
        """What a person should know: one JSON object a line."""
        return self.root / "alerts.jsonl"
