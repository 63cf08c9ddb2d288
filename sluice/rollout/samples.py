"""Reports of a server to the registry: its state, its counts and sampled requests.

Shape legend: M = networks of a model, O = outputs.
"""

from typing import Literal

from pydantic import AwareDatetime, Field, FiniteFloat

from sluice.base.settings import Record
from sluice.rollout.observations import TrafficCounts

ArmName = Literal["production", "challenger"]
RequestFault = Literal["errors", "timeouts", "not_finite"]

Outputs = tuple[tuple[float, ...], ...]
"""Output of each network of a model (M, O) for one element of a request. The prediction is the mean
over the networks."""


class SampledEmbedding(Record):
    """Embedding of a sampled element, computed by one network of production."""

    network: str = Field(description="Digest of the weights of the network.")
    values: tuple[FiniteFloat, ...] = Field(max_length=1024)


class Sample(Record):
    """One element of a request that was sampled at random, or that failed."""

    at: AwareDatetime
    rollout: str | None = Field(
        None, description="Id of the rollout in progress; None without one."
    )
    epoch: int = Field(ge=0, description="Epoch of the traffic split that routed the request.")
    key: str | None = Field(None, description="Index label of the row to predict from.")
    client: str | None = Field(
        None,
        description="Client as a digest that cannot be computed without the model's secret; "
        "None from an older version of Sluice.",
    )
    origin: str | None = Field(
        None,
        description="Subnet of the client, as a digest like client; None from an older version of "
        "Sluice.",
    )
    arm: ArmName = Field(description="Arm that the request was routed to.")
    fault: RequestFault | None = Field(None, description="Fault of this arm; None without one.")
    seconds: float = Field(ge=0, description="Time that this arm took [s].")
    features: tuple[float, ...] = Field(
        description="Newest row of the window, in the model's column order; empty for a codec "
        "whose elements have no feature columns."
    )
    content: str | None = Field(
        None,
        exclude_if=lambda content: content is None,
        description="Digest of the decoded element; None for windows.",
    )
    production: Outputs | None = Field(
        None,
        description="Outputs of production; None if production did not get the request or failed.",
    )
    challenger: Outputs | None = Field(
        None,
        description="Outputs of the challenger; None if the challenger did not get the request or "
        "failed.",
    )
    embedding: SampledEmbedding | None = Field(
        None,
        exclude_if=lambda embedding: embedding is None,
        description="Embedding of the element, to detect drift of images and texts; None for a "
        "version without a drift reference of embeddings.",
    )


class ServerState(Record):
    """State of one server."""

    server: str = Field(description="Random id, new at each start.")
    model: str
    at: AwareDatetime
    started_at: AwareDatetime
    epoch: int = Field(ge=0, description="Epoch of the traffic split in force.")
    production: int = Field(description="Number of the version that serves as production.")
    challenger: int | None = Field(None, description="Number of the loaded challenger version.")
    challenger_problem: str = Field(
        "",
        description="Reason why the challenger of the traffic split cannot be loaded; empty if "
        "there is no such problem.",
    )
    problems: tuple[str, ...] = ()
    draining: bool = False


class ServerReport(Record):
    """Report of one server: its state, its counts since the rollout step began, and new samples."""

    state: ServerState
    counts: TrafficCounts | None = Field(
        None, description="Counts of the step; None without a rollout."
    )
    samples: tuple[Sample, ...] = ()
