"""Variants of the healthy workload whose code causes difficulties for the supervising process."""

import datetime
import enum
import os
import sys
import time
from pathlib import Path

import pandas as pd
from torch import Tensor

from sluice.base.errors import ContractError
from tests.support.failfast_workloads import Net, OwnNet, SignalSettings


class Pace(enum.Enum):
    SLOW = "slow"


class RichSettings(SignalSettings):
    file: Path = Path("rows.csv")
    since: datetime.date = datetime.date(2020, 1, 1)
    pair: tuple[int, ...] = (1, 2)
    pace: Pace = Pace.SLOW
    names: dict[int, str] = {1: "one"}  # noqa: RUF012 - a settings field


class Rich(OwnNet):
    """Healthy; its settings contain types that plain JSON values do not distinguish."""

    settings_type = RichSettings


class Outer:
    class Inner(OwnNet):
        """Healthy, defined inside another class."""


class OwnConstructor(OwnNet):
    def __init__(self, settings: SignalSettings | None = None, *, rows: int = 700) -> None:
        super().__init__(settings)
        self.rows = rows


class CallsExit(OwnNet):
    def load_rows(self) -> pd.DataFrame:
        sys.exit("no credentials")


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("and it cannot even say so")


class RaisesSilently(OwnNet):
    def load_rows(self) -> pd.DataFrame:
        raise SilentError


class RaisesAtLength(OwnNet):
    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        raise ValueError("x" * 10_000_000)


class OwnError(ContractError):
    """A user-defined subclass of an error of Sluice."""


class RaisesOwnError(OwnNet):
    def load_rows(self) -> pd.DataFrame:
        raise OwnError("The token has expired.", fix="Log in again.")


class ForkNet(Net):
    """Exits, and leaves a forked process that continues to run and keeps every pipe open."""

    def forward(self, x: Tensor) -> Tensor:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os._exit(3)


class Forks(OwnNet):
    net = ForkNet


class DiesOnceNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        os._exit(4)


class FailsWhenLoadedAgain(OwnNet):
    """Its model ends the process, and its rows can be loaded only once."""

    net = DiesOnceNet

    def load_rows(self) -> pd.DataFrame:
        marker = Path(os.environ["SLUICE_TEST_MARK"])
        if marker.exists():
            raise ConnectionError("only one connection is allowed")
        marker.write_text("")
        return super().load_rows()
