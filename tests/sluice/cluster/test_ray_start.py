"""A Ray that does not start is reported with what to do."""

import pytest

from sluice.base.errors import SettingsError
from sluice.cluster.ray_session import join_ray
from sluice.cluster.settings import ComputeSettings


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            Exception("The current node timed out during startup."),
            "could not start .* within 30 s in 3 attempts",
        ),
        (RuntimeError("no room for sockets"), "could not start .* no room for sockets"),
    ],
)
def test_a_ray_that_cannot_start_is_refused_with_what_to_do(raised, said, monkeypatch):
    def fail(**_):
        raise raised

    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(SettingsError, match=said) as refused, join_ray(ComputeSettings()):
        pass
    assert refused.value.fix


def test_other_errors_of_ray_are_not_taken_for_a_slow_start(monkeypatch):
    def fail(**_):
        raise KeyError("a defect")

    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(KeyError), join_ray(ComputeSettings()):
        pass
