"""Workloads are built from their import paths and settings; errors name what to correct."""

import pytest

from sluice.base.errors import SettingsError
from sluice.workloads.load import build_workload
from tests.support.failfast_workloads import Signals


class FailingInit(Signals):
    def __init__(self, settings):
        super().__init__(settings)
        self.size = len(3)


class ExtraArgument(Signals):
    def __init__(self, settings, folder):  # noqa: ARG002
        super().__init__(settings)


def build(cls):
    return build_workload(cls, cls.settings_type(), path=f"here:{cls.__name__}")


def test_type_error_inside_of_init_names_its_line():
    with pytest.raises(SettingsError, match=r"here:FailingInit.*has no len") as error:
        build(FailingInit)

    line = FailingInit.__init__.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}" in error.value.fix
    assert "self.size = len(3)" in error.value.fix


def test_other_arguments_of_init_are_named():
    with pytest.raises(SettingsError, match="missing 1 required positional argument") as error:
        build(ExtraArgument)

    assert "let __init__ take only the settings" in error.value.fix
