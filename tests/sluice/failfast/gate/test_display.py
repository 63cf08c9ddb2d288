import io

from rich.console import Console

from sluice.failfast.gate.display import examples_table
from sluice.findings.check_outcome import HardExample


def test_an_unknown_ratio_to_the_median_loss_is_a_dash():
    examples = (
        HardExample(row="a", loss=3.0, times_median=2.0),
        HardExample(row="b", loss=0.5, times_median=float("nan")),
    )
    shown = io.StringIO()

    Console(file=shown, width=100).print(examples_table(examples))

    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert ["a", "3", "2.0", "none"] in lines
    assert ["b", "0.5", "-", "none"] in lines
