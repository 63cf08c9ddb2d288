"""What the source holds now, asked by sensors and schedules, which are cut off after a minute."""

from concurrent.futures import Future
from dataclasses import dataclass

import pandas as pd

from sluice.digests import digest_frame
from sluice.errors import SluiceError
from sluice.failfast.user_code import users_code
from sluice.pipeline import PipelineSettings
from sluice.serving.background import in_background

PATIENCE_S = 40.0


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
    """Loads the rows in a thread; one that hangs holds nobody up, and no second one is begun."""

    def __init__(self, pipeline: PipelineSettings, *, patience_s: float = PATIENCE_S) -> None:
        """Prepare.

        Args:
            pipeline: Whose source.
            patience_s: Longest time that whoever asks waits [s].
        """
        self._pipeline = pipeline
        self._patience_s = patience_s
        self._loading: Future[SourceState] | None = None

    def ask(self) -> SourceState | NoAnswer:
        """Return what the source holds, or why that is not known."""
        if self._loading is None:
            self._loading = in_background(self._load, name="source")
        try:
            return self._loading.result(self._patience_s)
        except TimeoutError:
            return NoAnswer(
                reason=f"The source has not answered within {self._patience_s:g} s.", is_slow=True
            )
        except SluiceError as error:
            return NoAnswer(reason=f"The source cannot be read: {error}", is_slow=False)
        finally:
            if self._loading.done():  # whatever came of it: the next one asks anew
                self._loading = None

    def _load(self) -> SourceState:
        with users_code("load_rows of the workload"):
            frame = self._pipeline.loaded_workload.load_rows()
            return SourceState(digest=digest_frame(frame), index=frame.index)
