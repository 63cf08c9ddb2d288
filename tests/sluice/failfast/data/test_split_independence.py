"""POC-8: an example does not depend on the other rows of its split."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.config.poc_settings import PocSettings
from sluice.data.folds import RowRange
from sluice.failfast.data.split_independence import check_split_independence
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.bars import BarsWorkload
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload
from tests.sluice.workloads.bar_samples import random_bars
from tests.support.echo import Echo
from tests.support.failfast_workloads import Signals
from tests.support.synthetic import SineWorkload

Change = Callable[[Examples, pd.DataFrame, RowRange], Examples]


def run_check(workload: Workload, rows: int = 1024) -> CheckOutcome:
    frame = workload.compute_features(workload.load_rows())
    return check_split_independence(
        workload, frame, workload.plan_folds(frame), PocSettings(split_rows=rows)
    )


def check_changed_examples(change: Change, rows: int = 1024) -> CheckOutcome:
    class Changed(Signals):
        def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
            return change(super().examples(frame, rows), frame, rows)

    return run_check(Changed(), rows)


def standardize(values: Tensor) -> Tensor:
    return (values - values.mean(dim=0)) / values.std(dim=0)


@pytest.mark.parametrize("workload_class", [Signals, Echo, SineWorkload])
def test_healthy_workloads_pass(workload_class: type[Workload]) -> None:
    finding = run_check(workload_class())

    assert finding.outcome == "pass"
    assert finding.numbers["examples_compared"] > 200


def test_bars_pass() -> None:
    workload = BarsWorkload()
    frame = workload.compute_features(random_bars(900))

    finding = check_split_independence(workload, frame, workload.plan_folds(frame), PocSettings())

    assert finding.outcome == "pass"


HEALTHY: dict[str, Change] = {
    "scaled by constants": lambda e, *_: replace(e, x=(e.x - 3) / 2),
    "projected": lambda e, *_: replace(e, x=e.x @ torch.ones(3, 8) / 7),
    "classes": lambda e, *_: replace(e, y=(e.y[:, 0] > 0).long()),
    "scaled inside its own window": lambda e, *_: replace(
        e, x=(e.x - e.x.mean(dim=1, keepdim=True)) / (e.x.std(dim=1, keepdim=True) + 1e-3)
    ),
    "unknown labels": lambda e, *_: replace(
        e, y=e.y.masked_fill(torch.from_numpy(e.rows % 5 == 0)[:, None], torch.nan)
    ),
    "padded to the longest": lambda e, *_: replace(
        e, x=torch.nn.functional.pad(e.x[..., 0].round().long(), (0, len(e) % 5))
    ),
    "windows inside the split": lambda e, *_: replace(e, x=e.x[5:], y=e.y[5:], rows=e.rows[5:]),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("rows", [16, 1024])
def test_values_that_depend_only_on_the_own_row_pass(name: str, rows: int) -> None:
    assert check_changed_examples(HEALTHY[name], rows).outcome == "pass"


def fill_gaps(e: Examples, frame: pd.DataFrame, rows: RowRange) -> Examples:
    value = frame["a"].iloc[rows.start : rows.stop].where(lambda a: a > -1)
    value = value.fillna(value.mean())
    x = e.x.clone()
    x[:, -1, 0] = torch.from_numpy(value.to_numpy(np.float32)[e.rows - rows.start])
    return replace(e, x=x)


def encode_values(e: Examples, frame: pd.DataFrame, _: RowRange) -> Examples:
    code = np.unique(frame["a"].iloc[e.rows].round(1), return_inverse=True)[1]
    return replace(e, x=torch.from_numpy(code)[:, None])


DEPENDENT: dict[str, Change] = {
    "x scaled by its split": lambda e, *_: replace(e, x=standardize(e.x)),
    "y scaled by its split": lambda e, *_: replace(e, y=standardize(e.y)),
    "only validation scaled": lambda e, _, r: replace(e, x=standardize(e.x) if r.start else e.x),
    "only train scaled": lambda e, _, r: replace(e, x=e.x if r.start > 150 else standardize(e.x)),
    "divided by the maximum": lambda e, *_: replace(e, x=e.x / e.x.amax(dim=(0, 1))),
    "filled within the split": fill_gaps,
    "encoded within the split": encode_values,
    "ranks": lambda e, *_: replace(e, x=e.x.argsort(dim=0).argsort(dim=0).float()),
    "scaled by the whole table": lambda e, f, _: replace(e, x=(e.x - f["a"].mean()).float()),
    "noise by position in the split": lambda e, *_: replace(
        e, x=e.x + torch.randn(e.x.shape, generator=torch.Generator().manual_seed(0))
    ),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependence_on_other_rows_is_detected(name: str) -> None:
    finding = check_changed_examples(DEPENDENT[name])

    assert (finding.outcome, finding.fault) == ("fail", "split dependence")
    assert all(finding.response)


def test_split_change_and_row_are_reported() -> None:
    finding = check_changed_examples(DEPENDENT["only validation scaled"])

    assert finding.summary.startswith("Fold 0, val: when the last quarter of the split's rows")
    assert "x of" in finding.summary
    assert finding.numbers["split"] == "val"


def test_statistics_of_the_whole_table_have_their_own_cause() -> None:
    assert (
        "including test rows"
        in check_changed_examples(DEPENDENT["scaled by the whole table"]).response[0]
    )


def test_nondeterministic_examples_are_reported_as_such() -> None:
    generator = torch.Generator().manual_seed(0)
    finding = check_changed_examples(
        lambda e, *_: replace(e, x=e.x + torch.randn(e.x.shape, generator=generator))
    )

    assert finding.outcome == "fail"
    assert "called twice for the same val rows" in finding.summary


def test_a_split_no_longer_than_a_window_is_insufficient() -> None:
    def whole_or_nothing(e: Examples, frame: pd.DataFrame, rows: RowRange) -> Examples:
        if len(rows) < 16 or len(frame) < 700:
            raise ContractError("too short for a window", fix="more rows")
        return e

    finding = check_changed_examples(whole_or_nothing, rows=16)

    assert finding.outcome == "insufficient"
    assert all(finding.response)


def test_an_error_of_examples_on_a_whole_split_is_raised() -> None:
    def raise_error(*_: object) -> Examples:
        raise KeyError("no such class")

    with pytest.raises(ContractError, match="no such class"):
        check_changed_examples(raise_error)
