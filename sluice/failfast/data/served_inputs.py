"""POC-8: what the network is trained on is what a client can send."""

from sluice.base.errors import ContractError
from sluice.findings.finding import Finding
from sluice.workloads.windows import require_windows
from sluice.workloads.workload import Workload


def check_served_inputs(workload: Workload, *, required: bool) -> Finding:
    """Ask before the training what serving asks after it (POC-8).

    Args:
        workload: Makes the examples.
        required: It is a pipeline's, and what is promoted is to be served. A script that trains by
            itself may give its network whatever it likes.

    Raises:
        ContractError: Inputs are no windows of the feature columns, and are required to be.
    """
    try:
        require_windows(workload, type(workload).__name__)
    except ContractError as error:
        if required:
            raise
        return Finding(outcome="pass", summary=f"Not required outside of a pipeline. {error.what}")
    return Finding(
        outcome="pass", summary="Inputs are windows of the feature columns, as a client sends them."
    )
