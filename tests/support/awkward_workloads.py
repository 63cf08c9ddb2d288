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
    """Healthy. Its settings have types that JSON does not have, such as paths, dates and tuples."""

    settings_type = RichSettings


class Outer:
    class Inner(OwnNet):
        """Healthy, and defined inside another class."""


class CustomConstructor(OwnNet):
    def __init__(self, settings: SignalSettings | None = None, *, rows: int = 700) -> None:
        super().__init__(settings)
        self.rows = rows


class CallsExit(OwnNet):
    def load_rows(self) -> pd.DataFrame:
        sys.exit("no credentials")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this error has no text")


class RaisesUnprintableError(OwnNet):
    def load_rows(self) -> pd.DataFrame:
        raise UnprintableError


class RaisesLongMessage(OwnNet):
    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        raise ValueError("x" * 10_000_000)


class UserDefinedError(ContractError):
    """An error class of the user that inherits from an error class of Sluice."""


class RaisesUserDefinedError(OwnNet):
    def load_rows(self) -> pd.DataFrame:
        raise UserDefinedError("The token has expired.", fix="Log in again.")


class ForkNet(Net):
    """Ends the process. A forked process continues to run and keeps every pipe open."""

    def forward(self, x: Tensor) -> Tensor:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os._exit(3)


class Forks(OwnNet):
    net = ForkNet


class ExitingNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        os._exit(4)


class FailsWhenLoadedAgain(OwnNet):
    """The network ends the process, and the rows can be loaded only once."""

    net = ExitingNet

    def load_rows(self) -> pd.DataFrame:
        marker = Path(os.environ["SLUICE_TEST_MARK"])
        if marker.exists():
            raise ConnectionError("only one connection is allowed")
        marker.write_text("")
        return super().load_rows()
