"""A decision states what it could not compare."""

from typing import ClassVar

from sluice.assets.promotion_verdict import _headline_caveat
from tests.support.synthetic import SineWorkload


class Calmar(SineWorkload):
    headline_metric = "calmar"


class Declared(Calmar):
    metric_directions: ClassVar = {"calmar": "higher"}


def test_unknown_direction_of_the_headline_metric_is_a_caveat():
    assert "The headline metric 'calmar' was not compared" in _headline_caveat(Calmar())
    assert _headline_caveat(Declared()) == ""
    assert _headline_caveat(SineWorkload()) == ""
