"""All planted defects; each must be found by the named check, with the right cause and fix."""

from sluice.bench.poc.data_table import DATA_DEFECTS
from sluice.bench.poc.learning_table import LEARNING_DEFECTS
from sluice.bench.poc.network_table import NETWORK_DEFECTS
from sluice.bench.poc.outside_table import PROCESS_DEFECTS, VALIDATOR_DEFECTS
from sluice.bench.poc.planted import Defect

DEFECTS: tuple[Defect, ...] = (
    *DATA_DEFECTS,
    *NETWORK_DEFECTS,
    *LEARNING_DEFECTS,
    *PROCESS_DEFECTS,
    *VALIDATOR_DEFECTS,
)
"""Every planted defect, in the order of the checks."""
