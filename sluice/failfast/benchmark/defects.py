"""The table of planted defects: each must be caught by the named check, with the right response."""

from sluice.failfast.benchmark.data_table import DATA_DEFECTS
from sluice.failfast.benchmark.learning_table import LEARNING_DEFECTS
from sluice.failfast.benchmark.network_table import NETWORK_DEFECTS
from sluice.failfast.benchmark.outside_table import LONE_DEFECTS, PROCESS_DEFECTS
from sluice.failfast.benchmark.planted import Defect

DEFECTS: tuple[Defect, ...] = (
    *DATA_DEFECTS,
    *NETWORK_DEFECTS,
    *LEARNING_DEFECTS,
    *PROCESS_DEFECTS,
    *LONE_DEFECTS,
)
"""Every planted defect, in the order of the checks."""
