"""Check that the network is trained on inputs that a client can send."""

from sluice.base.errors import ContractError
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.windows import require_windows
from sluice.workloads.workload import Workload


def check_served_inputs(workload: Workload, *, required: bool) -> CheckOutcome:
    """Check before the training that the inputs have the form that serving requires.

    Args:
        workload: Builds the examples.
        required: Whether the inputs must be servable: true for a pipeline, whose promoted model is
            served. A standalone training script may use any inputs.

    Raises:
        ContractError: Inputs are not windows of the feature columns, although required.
    """
    if required and not workload.is_served:
        return CheckOutcome(
            outcome="pass",
            summary="Not required, because the workload declares is_served = False.",
        )
    try:
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
