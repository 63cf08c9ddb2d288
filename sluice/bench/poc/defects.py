"""All planted defects. Each of them names the check that must be the first to report it."""

from sluice.bench.poc.planted import Defect
from sluice.bench.poc.planted_data_defects import DATA_DEFECTS
from sluice.bench.poc.planted_learning_defects import LEARNING_DEFECTS
from sluice.bench.poc.planted_network_defects import NETWORK_DEFECTS
from sluice.bench.poc.planted_process_defects import PROCESS_DEFECTS, VALIDATOR_DEFECTS

DEFECTS: tuple[Defect, ...] = (
    *DATA_DEFECTS,
    *NETWORK_DEFECTS,
    *LEARNING_DEFECTS,
    *PROCESS_DEFECTS,
    *VALIDATOR_DEFECTS,
)
"""Every planted defect, in the order of the checks."""
