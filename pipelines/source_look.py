"""What the source holds now, asked by sensors and schedules, which are cut off after a minute."""

from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import pandas as pd

from sluice.base.digests import digest_frame
from sluice.base.errors import SluiceError
from sluice.config.pipeline import PipelineSettings
from sluice.findings.user_code import users_code
from sluice.serving.background import in_background

PATIENCE_S = 40.0
MAX_WAITS = 3
"""A load that was waited for so often may hang for ever: another one is begun beside it."""
MAX_LOADS = 4
"""Threads of one source that load or hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The rows of the source, as far as it matters whether they changed."""

    digest: str
    """Data version, as that of the asset ``raw_data``."""

    index: pd.Index


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """Why nothing is known of the source."""

    reason: str
    is_slow: bool
    """It may be there, and takes longer than a sensor may wait."""


class SourceLook:
    """Loads the rows in a thread; one that hangs holds nobody up, and few can hang at a time."""

    def __init__(self, pipeline: PipelineSettings, *, patience_s: float = PATIENCE_S) -> None:
        """Prepare.

        Args:
            pipeline: Whose source.
            patience_s: Longest time that whoever asks waits [s].
        """
        self._pipeline = pipeline
        self._patience_s = patience_s
        self._loading: list[Future[SourceState]] = []  # since the last answer
        self._hanging: list[Future[SourceState]] = []  # from before it
        self._num_waits = 0  # for the newest load, in vain

    def ask(self) -> SourceState | NoAnswer:
        """Return what the source holds, or why that is not known."""
        self._hanging = [load for load in self._hanging if not load.done()]
        full = len(self._loading) + len(self._hanging) >= MAX_LOADS
        if not full and (not self._loading or self._num_waits >= MAX_WAITS):
            self._loading.append(in_background(self._load, name="source"))
            self._num_waits = 0
        done = wait(self._loading, self._patience_s, return_when=FIRST_COMPLETED).done
        if not done:
            self._num_waits += 1
            return NoAnswer(reason=self._silence(), is_slow=True)
        newest = next(load for load in reversed(self._loading) if load in done)
        self._hanging += [load for load in self._loading if not load.done()]
        self._loading = []  # whatever came of it: the next one asks anew
        try:
            return newest.result()
        except SluiceError as error:
            return NoAnswer(reason=f"The source cannot be read: {error}", is_slow=False)

    def _silence(self) -> str:
        said = f"The source has not answered within {self._patience_s:g} s."
        if len(self._loading) + len(self._hanging) < MAX_LOADS:
            return said
        return (
            f"{said} {MAX_LOADS} loads of it hang, and no further one is begun beside them: give "
            "load_rows a time limit, and start sluice dev again."
        )

    def _load(self) -> SourceState:
        with users_code("load_rows of the workload"):
            frame = self._pipeline.loaded_workload.load_rows()
            return SourceState(digest=digest_frame(frame), index=frame.index)
