"""Untrusted JSON is parsed strictly."""

import math

import pytest

from sluice.base.strict_json import parse_strict_json


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_non_finite_numbers_are_rejected_if_finite_is_set(number: str) -> None:
    text = f'{{"x": [{number}]}}'.encode()

    with pytest.raises(ValueError, match=r"is not a JSON number|is too large"):
        parse_strict_json(text, require_finite=True)
    assert not math.isfinite(parse_strict_json(text, require_finite=False)["x"][0])


def test_finite_numbers_are_kept() -> None:
    assert parse_strict_json(b'{"x": [1.5, 2, -1e300]}', require_finite=True) == {
        "x": [1.5, 2, -1e300]
    }
