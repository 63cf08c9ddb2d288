"""A workload for a table that is the value of a Dagster asset."""

from sluice.workloads.columns import Number
from sluice.workloads.table import TableWorkload


class Shop(TableWorkload):
    target_column = "price"
    inputs = (Number("area"),)
