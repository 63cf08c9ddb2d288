"""What a decision could not check is said beside it."""

from typing import ClassVar

from sluice.assets.promotion_verdict import _headline_gap
from tests.support.synthetic import SineWorkload


class Calmar(SineWorkload):
    headline_metric = "calmar"


class Declared(Calmar):
    metric_directions: ClassVar = {"calmar": "higher"}


def test_a_headline_metric_whose_direction_nobody_knows_is_said():
    assert "Whether the headline metric 'calmar' got worse is not known" in _headline_gap(Calmar())
    assert _headline_gap(Declared()) == ""
    assert _headline_gap(SineWorkload()) == ""
