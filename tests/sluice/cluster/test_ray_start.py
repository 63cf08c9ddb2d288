"""A failed start of Ray is reported with a fix."""

import pytest

from sluice.base.errors import SettingsError
from sluice.cluster.ray_session import join_ray
from sluice.cluster.settings import ComputeSettings


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (
            Exception("The current node timed out during startup."),
            "could not start .* within 30 s in 3 attempts",
        ),
        (RuntimeError("no room for sockets"), "could not start .* no room for sockets"),
    ],
)
def test_a_failed_start_of_ray_is_reported_with_a_fix(raised, message, monkeypatch):
    def fail(**_):
        raise raised

    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(SettingsError, match=message) as refused, join_ray(ComputeSettings()):
        pass
    assert refused.value.fix


def test_other_errors_of_ray_are_not_reported_as_a_failed_start(monkeypatch):
    def fail(**_):
        raise KeyError("a defect")

    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(KeyError), join_ray(ComputeSettings()):
        pass
