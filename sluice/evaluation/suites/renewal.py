"""When the hard suite is made anew: once for each model that is in production."""

from datetime import datetime

import numpy as np
import pandas as pd

from sluice.evaluation.losses import LossTable
from sluice.evaluation.suites.hard_rows import hard_suite
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.evaluation.suites.suite import FiledSuite, HighestLoss

HARD = "hard"
"""Name of the suite that is made by itself."""


def renew_hard_suite(
    library: SuiteLibrary,
    losses: LossTable,
    frame: pd.DataFrame,
    feature_columns: tuple[str, ...],
    *,
    share: float,
    at: datetime,
) -> FiledSuite | None:
    """Return the hard suite of this model, made now unless its newest version is of this model.

    New data alone makes no new version: candidates that come one after another against the same
    production are to be compared on the same rows. A suite that somebody else filed under this
    name is left alone.

    Args:
        library: Of the pipeline.
        losses: Of what is in production, or of the baseline while nothing is.
        frame: Feature frame.
        feature_columns: Where to look for what is unusual.
        share: Of the window's rows.
        at: Now, UTC.

    Returns:
        None when there is none and the losses cannot make one, because some are not finite.

    Raises:
        IntegrityError: The filed suite is damaged.
    """
    newest = library.load(HARD) if HARD in library.names() else None
    if newest is not None:
        origin = newest.suite.origin
        if not isinstance(origin, HighestLoss) or origin.subject == losses.subject:
            return newest
    if not np.isfinite(losses.loss_SN).all():
        return newest
    suite = hard_suite(HARD, losses, frame, feature_columns, share=share)
    library.revise(suite, at=at)
    return library.load(HARD)
