"""Updates the hard suite: creates a new version for each model in production."""

from datetime import datetime

import numpy as np
import pandas as pd

from sluice.evaluation.losses import LossTable
from sluice.evaluation.suites.hard_rows import hard_suite
from sluice.evaluation.suites.library import HARD_SUITE, SuiteLibrary
from sluice.evaluation.suites.suite import HighestLoss, SuiteVersion


def refresh_hard_suite(
    library: SuiteLibrary,
    losses: LossTable,
    frame: pd.DataFrame,
    feature_columns: tuple[str, ...],
    *,
    share: float,
    at: datetime,
) -> SuiteVersion | None:
    """Return the newest version of the hard suite, which is created first if necessary.

    A version is created if none exists, or if another model selected the rows of the newest
    version. New data alone does not create a version, so that successive candidates against the
    same production version are compared on the same rows. Non-finite losses do not create a version
    either. A user-defined suite of this name is not changed.

    Args:
        library: Suites of the pipeline.
        losses: Losses of the version in production, or of the baseline before any promotion.
        frame: Feature frame.
        feature_columns: Columns in which unusual values are reported.
        share: Share of the window's rows to select.
        at: Current time, UTC.

    Returns:
        The newest version of the suite; None if no version exists, and non-finite losses prevent
        its creation.

    Raises:
        ContractError: No row of the losses is in the frame.
        IntegrityError: The stored suite is damaged.
    """
    newest_version = library.load(HARD_SUITE) if HARD_SUITE in library.names() else None
    if newest_version is not None:
        origin = newest_version.suite.origin
        if not isinstance(origin, HighestLoss) or origin.subject == losses.subject:
            return newest_version
    if not np.isfinite(losses.loss_SN).all():
        return newest_version
    suite = hard_suite(HARD_SUITE, losses, frame, feature_columns, share=share)
    library.revise(suite, at=at)
    return library.load(HARD_SUITE)
