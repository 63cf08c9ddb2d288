"""The fault catalogue: every problem that a detector of Sluice can report, by its name.

The POC gate, the tracer, the training diagnosis, the rollout and the rehearsal name problems by
entries of this catalogue, so that one problem has one name.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from sluice.findings.fault import Fault
from sluice.findings.faults.checkpoints import CHECKPOINT_FAULTS, CheckpointFault
from sluice.findings.faults.data import DATA_FAULTS, DataFault
from sluice.findings.faults.distributed import DISTRIBUTED_FAULTS, DistributedFault
from sluice.findings.faults.gradients import GRADIENT_FAULTS, GradientFault
from sluice.findings.faults.losses import LOSS_FAULTS, LossFault
from sluice.findings.faults.network import NETWORK_FAULTS, NetworkFault
from sluice.findings.faults.optimization import OPTIMIZATION_FAULTS, OptimizationFault
from sluice.findings.faults.runtime import RUNTIME_FAULTS, RuntimeFault
from sluice.findings.faults.serving import SERVING_FAULTS, ServingFault
from sluice.findings.faults.tokens import TOKEN_FAULTS, TokenFault

FaultName = Literal[
    DataFault,
    TokenFault,
    NetworkFault,
    GradientFault,
    OptimizationFault,
    LossFault,
    CheckpointFault,
    DistributedFault,
    RuntimeFault,
    ServingFault,
]
"""Name of an entry of the catalogue."""

CATALOGUE: Mapping[str, Fault] = MappingProxyType(
    {
        fault.name: fault
        for faults in (
            DATA_FAULTS,
            TOKEN_FAULTS,
            NETWORK_FAULTS,
            GRADIENT_FAULTS,
            OPTIMIZATION_FAULTS,
            LOSS_FAULTS,
            CHECKPOINT_FAULTS,
            DISTRIBUTED_FAULTS,
            RUNTIME_FAULTS,
            SERVING_FAULTS,
        )
        for fault in faults
    }
)
"""Every fault by its name, grouped by topic."""


def find_fault(name: FaultName) -> Fault:
    """Return the entry of a fault."""
    return CATALOGUE[name]
