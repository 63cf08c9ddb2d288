"""Resources of the assets: the state folder with the registry, and a progress reporter."""

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
"""Resource key of the IO manager of Sluice's assets. The prefix distinguishes it from resources of
the user's project, such as ``io_manager``."""


class ProgressReporter(Protocol):
    """Callback that receives the progress of a long task."""

    def __call__(
        self,
        text: str,
        *,
        num_done: int,
        total: int,
        rows: Sequence[Mapping[str, object]] = (),
        is_important: bool = False,
    ) -> None:
        """Report that ``num_done`` of ``total`` parts are finished.

        Args:
            text: Description of the current part.
            num_done: Number of finished parts.
            total: Number of all parts.
            rows: Table of the parts in progress, for receivers that display a table.
            is_important: Whether receivers should display the text even if they omit other texts.
        """


def ignore_progress(
    text: str,
    *,
    num_done: int,
    total: int,
    rows: Sequence[Mapping[str, object]] = (),
    is_important: bool = False,
) -> None:
    """Discard the progress. The assets also write to Dagster's log."""
    del text, num_done, total, rows, is_important


def utc_now() -> datetime:
    """Return the current time in UTC; all assets use this clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SluiceState:
    """State folder and registry URL, which run config cannot change."""

    root: str
    registry_url: str
    registry_key: str = ""

    @classmethod
    def at(cls, home: Home) -> "SluiceState":
        """Return the resource for one home."""
        key = "" if home.registry_key is None else str(home.registry_key)
        return cls(root=str(home.root), registry_url=home.registry_url, registry_key=key)

    @property
    def home(self) -> Home:
        """Paths inside the state folder."""
        key = Path(self.registry_key) if self.registry_key else None
        return Home(root=Path(self.root), registry_url=self.registry_url, registry_key=key)

    @property
    def store(self) -> ArtifactStore:
        """Content-addressed artifact store of this state folder."""
        return ArtifactStore(self.home.artifacts)

    def ledger(self, clock: Callable[[], datetime] = utc_now) -> RolloutLedger:
        """Open the registry; the caller closes it. If a key file is set, every change is signed."""
        key = SigningKey.read(Path(self.registry_key)) if self.registry_key else None
        return RolloutLedger.open(self.registry_url, clock=clock, key=key)
