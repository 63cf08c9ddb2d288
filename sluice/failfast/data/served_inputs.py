"""Check that a server can build the inputs of the network from a client's request."""

from collections.abc import Sequence

import pandas as pd

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.data.folds import Fold
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.codecs.codec import Codec
from sluice.workloads.codecs.round_trip import check_round_trip
from sluice.workloads.codecs.windows import WindowsCodec
from sluice.workloads.windows import require_windows
from sluice.workloads.workload import Workload


def check_served_inputs(
    workload: Workload,
    *,
    required: bool,
    raw: pd.DataFrame | None = None,
    frame: pd.DataFrame | None = None,
    folds: Sequence[Fold] = (),
) -> CheckOutcome:
    """Check before the training that decoded requests equal the inputs of the examples.

    For the windows codec, the windows of a small table are compared. For every other codec,
    requests for test rows of the last fold are decoded and compared with the examples of these
    rows.

    Args:
        workload: Builds the examples and the codec.
        required: Whether a server must be able to build the inputs: true for a pipeline, whose
            promoted model is served. A training script may use any inputs.
        raw: Raw rows; not used for windows.
        frame: Feature frame; not used for windows.
        folds: Folds of the frame; not used for windows.

    Raises:
        ContractError: ``required`` is true, and inputs are not windows of the feature columns, or
            decoded requests differ from the examples.
    """
    if required and not workload.is_served:
        return CheckOutcome(
            outcome="pass",
            summary="Not required, because the workload declares is_served = False.",
        )
    try:
        with wrap_user_errors("codec() of the workload"):
            codec = workload.codec()
            if not isinstance(codec, WindowsCodec):
                return _check_codec(workload, codec, raw, frame, folds)
        require_windows(workload, type(workload).__name__)
    except ContractError as error:
        if required:
            raise
        return CheckOutcome(
            outcome="pass", summary=f"Not required outside of a pipeline. {error.what}"
        )
    return CheckOutcome(
        outcome="pass", summary="Inputs are windows of the feature columns, as clients send them."
    )


def _check_codec(
    workload: Workload,
    codec: Codec,
    raw: pd.DataFrame | None,
    frame: pd.DataFrame | None,
    folds: Sequence[Fold],
) -> CheckOutcome:
    if raw is None or frame is None or not folds:
        return CheckOutcome(
            outcome="insufficient",
            summary=f"The check of codec '{codec.kind}' requires raw rows, features and a fold.",
            fix="Run the POC gate of the pipeline.",
        )
    identity = codec.identity()
    round_trip = check_round_trip(workload, codec, raw, frame, folds[-1].test)
    equality = (
        "the same bits"
        if round_trip.max_deviation == 0
        else f"the same values within {round_trip.max_deviation:.2g} standard deviations"
    )
    return CheckOutcome(
        outcome="pass",
        summary=f"Requests for {pluralize(round_trip.num_rows, 'row')}, decoded by the codec "
        f"'{codec.kind}', have {equality} as the examples.",
        numbers={
            "rows": round_trip.num_rows,
            "max_deviation": round_trip.max_deviation,
            "codec": codec.kind,
            "codec_digest": identity.digest,
        },
    )
