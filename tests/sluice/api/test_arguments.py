"""Invalid arguments of public functions raise errors that state the allowed values."""

import pandas as pd
import pytest

import sluice
from sluice.base.errors import SettingsError

ROWS = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda: sluice.check(frame=ROWS, target="y", level="minimal"),
            "level must be 'minimum' or 'full', got 'minimal'. Did you mean 'minimum'?",
        ),
        (lambda: sluice.check(ROWS), "got a data frame. Pass a data frame by keyword"),
        (lambda: sluice.fit(ROWS), "frame=..., target='...'"),
        (lambda: sluice.fit(ROWS, target="y"), "frame=..., target='...'"),
        (lambda: sluice.fit("x"), "must be a workload class or an instance of one, got 'x'"),
        (lambda: sluice.fit(dict), "the class dict, which is not a subclass of sluice.Workload"),
        (lambda: sluice.evaluate("x"), "got a str. Pass the result of sluice.fit"),
        (lambda: sluice.TrainSettings(max_epoch=3), "Did you mean 'max_epochs'?"),
        (lambda: sluice.TrainSettings(max_epochs="3"), "TrainSettings: 'max_epochs': Input should"),
    ],
)
def test_invalid_argument_error_states_the_allowed_values(call, expected):
    with pytest.raises(SettingsError) as error:
        call()

    assert expected in str(error.value)
