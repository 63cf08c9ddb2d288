"""Joining of the features of partitions."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.workloads.partitions import Partition, join_partitions


def test_different_column_order_of_partitions_is_rejected():
    raw = pd.DataFrame({"x": [1.0, 2.0]})
    parts = [
        (Partition("a", np.array([0])), pd.DataFrame({"x": [1.0], "y": [2.0]}, index=[0])),
        (Partition("b", np.array([1])), pd.DataFrame({"y": [2.0], "x": [1.0]}, index=[1])),
    ]

    with pytest.raises(ContractError, match=r"it is x, y in partition 'a' and y, x in 'b'"):
        join_partitions(raw, parts)
