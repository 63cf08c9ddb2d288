"""What every asset is handed: where state lies, the ledger, and somewhere to report progress."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey

RECORDS = "sluice_records"
"""Resource key of the IO manager of our assets. Like ``sluice_state`` and ``sluice_progress`` it
has our prefix: a project has resources of its own beside ours, its ``io_manager`` above all."""


class Progress(Protocol):
    """Hears of finished pieces of long work."""

    def __call__(
        self, text: str, *, done: int, total: int, rows: Sequence[Mapping[str, object]] = ()
    ) -> None:
        """Take note that ``done`` of ``total`` pieces are finished.

        Args:
            text: Says which piece.
            done: Pieces that are finished.
            total: Pieces in all.
            rows: A table of what is under way, for those who can draw one.
        """


def silent(text: str, *, done: int, total: int, rows: Sequence[Mapping[str, object]] = ()) -> None:
    """Hear nothing; the assets write to Dagster's own log as well."""
    del text, done, total, rows


def utc_now() -> datetime:
    """Return the time; the one clock of the assets."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state folder and the ledger's address, which no run config can change."""

    root: str
    registry_url: str
    registry_key: str = ""

    @classmethod
    def at(cls, home: Home) -> "State":
        """Return the resource for one home."""
        key = "" if home.registry_key is None else str(home.registry_key)
        return cls(root=str(home.root), registry_url=home.registry_url, registry_key=key)

    @property
    def home(self) -> Home:
        """Layout of the state folder."""
        key = Path(self.registry_key) if self.registry_key else None
        return Home(root=Path(self.root), registry_url=self.registry_url, registry_key=key)

    @property
    def store(self) -> ArtifactStore:
        """Content-addressed files."""
        return ArtifactStore(self.home.artifacts)

    def ledger(self, clock: Callable[[], datetime] = utc_now) -> RolloutLedger:
        """Open the registry; the caller closes it. With a key file every change is signed."""
        key = SigningKey.read(Path(self.registry_key)) if self.registry_key else None
        return RolloutLedger.open(self.registry_url, clock=clock, key=key)
