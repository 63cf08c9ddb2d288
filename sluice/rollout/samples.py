"""What a server tells of itself and of single requests: values, written for others to judge.

Shape legend: M = networks of a model, O = outputs.
"""

from typing import Literal

from pydantic import AwareDatetime, Field

from sluice.base.settings import Record
from sluice.rollout.observations import Window

ArmName = Literal["production", "challenger"]
Fault = Literal["errors", "timeouts", "not_finite"]

Outputs = tuple[tuple[float, ...], ...]
"""What each network of a model (M, O) said of one window; their mean is the answer."""


class Sample(Record):
    """One window of one request, of those that were drawn by chance, or that failed."""

    at: AwareDatetime
    rollout: str | None = Field(None, description="Under way at the time; None without one.")
    epoch: int = Field(ge=0, description="Of the weights that routed it.")
    key: str | None = Field(None, description="Name of the row to predict from, as its label's.")
    client: str | None = Field(
        None,
        description="Who sent it: a digest that nobody can make without the model's secret; None "
        "from an older Sluice.",
    )
    origin: str | None = Field(
        None,
        description="Network that it came from, as such a digest; None from an older Sluice.",
    )
    arm: ArmName = Field(description="Where it was routed.")
    fault: Fault | None = Field(None, description="Of the arm it was routed to.")
    seconds: float = Field(ge=0, description="How long that arm took [s].")
    features: tuple[float, ...] = Field(
        description="Newest row of the window, in the model's order of columns."
    )
    production: Outputs | None = Field(None, description="None when it was not asked or failed.")
    challenger: Outputs | None = Field(None, description="None when it was not asked or failed.")


class ServerState(Record):
    """What one server has in force."""

    server: str = Field(description="Drawn anew at each start.")
    model: str
    at: AwareDatetime
    started_at: AwareDatetime
    epoch: int = Field(ge=0, description="Of the weights in force.")
    production: int = Field(description="Number of the version that answers as production.")
    challenger: int | None = Field(None, description="Number of the challenger it has loaded.")
    challenger_problem: str = Field("", description="Why it has no challenger though it should.")
    problems: tuple[str, ...] = ()
    draining: bool = False


class Report(Record):
    """What one server saw since its last report; its counts since the step began."""

    state: ServerState
    window: Window | None = Field(None, description="Counts of the step; None without a rollout.")
    samples: tuple[Sample, ...] = ()
