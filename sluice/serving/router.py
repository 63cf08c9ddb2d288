"""Which arm answers: the user's place decides, production steps in, the shadow looks on (ROLL-1).

A request keeps the table it began with, so that a swap between two requests fails neither. The
original fault is the challenger's, even when nobody but the counts ever hears of it.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.observability import tracing
from sluice.registry.reading import Clock
from sluice.rollout.observations import Window
from sluice.rollout.samples import ArmName, Fault, Outputs, Sample
from sluice.rollout.weights import Weights
from sluice.serving.arm import Arm, Busy, NetworkFailed, NeverStarted, Output
from sluice.serving.contract import PredictRequest
from sluice.serving.metrics import Metrics
from sluice.serving.recorder import Recorder
from sluice.serving.refusals import ModelFailed, Refusal, TooLate, WrongInput
from sluice.serving.settings import ServingSettings
from sluice.serving.steps import Steps
from sluice.serving.sticky import is_chosen

Input = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """The arms of one state of the weights."""

    weights: Weights
    production: Arm
    challenger: Arm | None
    shadow: Arm | None
    """The networks of the arm that gets copies, in a thread that makes way for the other arm."""

    @property
    def compared(self) -> Weights:
        """The weights, of production alone while there is no challenger to compare it with."""
        return self.weights if self.challenger is not None else self.weights.production_only()

    @property
    def copied(self) -> ArmName:
        """The arm that gets copies while there is a shadow."""
        return "production" if self.weights.share >= 1 else "challenger"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routed:
    """An answer and who gave it."""

    output: Output
    """Mean of the networks' answers (N, O)."""

    arm: ArmName
    version: int
    candidate: str
    weights: Weights
    challenger_fault: Fault | None
    """Why production answered in the challenger's place; None when it did not."""

    challenger_error: str
    """Type of what the challenger raised, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tried:
    """What an arm made of a request; without a fault there is an output."""

    output: Output | None
    """What each network said (M, N, O)."""

    fault: Fault | None
    place: dict[str, Any]
    """What a network raised, and where."""

    is_begun: bool
    """False when the arm never came to the request."""

    seconds: float


class Router:
    """Routes each request by the table in force; counts what became of it."""

    def __init__(
        self,
        table: Table,
        *,
        settings: ServingSettings,
        clock: Clock,
        metrics: Metrics,
        recorder: Recorder,
    ) -> None:
        self._table = table
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._recorder = recorder
        self._expired: datetime | None = None
        self._shadows: set[asyncio.Task[None]] = set()
        self.steps = Steps(table.compared, now=clock())
        metrics.show_step(self.window)

    @property
    def table(self) -> Table:
        """What requests are routed by from now on."""
        return self._table

    def follow(self, table: Table) -> None:
        """Route by another table; requests under way end by the one they began with."""
        self._table = table
        self.steps.follow(table.compared, now=self._clock())

    def in_force(self, weights: Weights) -> Weights:
        """Return the weights, or production alone once their lease is over.

        A lease that was seen to be over stays so when the clock goes back.
        """
        if weights.expires_at is None:
            return weights
        if weights.expired(self._clock()):
            self._expired = weights.expires_at
        over = self._expired is not None and weights.expires_at <= self._expired
        return weights.production_only() if over else weights

    async def answer(self, request: PredictRequest, *, user: str, deadline: float) -> Routed:
        """Answer by the arm that the user belongs to.

        Args:
            request: What is asked.
            user: Key that decides the arm.
            deadline: Latest moment of an answer [s, monotonic].

        Raises:
            WrongInput: The windows break the contract, or no finite number follows from them.
            ModelFailed: Production raised.
            TooLate: Production did not answer before the deadline.
        """
        table = self._table
        weights = self.in_force(table.weights)
        compared = self.in_force(table.compared)
        x_NLD = table.production.deployed.contract.tensor(request)
        challenger, failed = table.challenger, None
        if (
            challenger is not None
            and weights.rollout is not None
            and is_chosen(user, salt=weights.rollout, share=weights.share)
        ):
            tried = await self._try(
                challenger,
                x_NLD,
                name="challenger",
                timeout_s=min(self._settings.challenger_deadline_s, deadline - time.monotonic()),
                max_waiting=self._settings.challenger_waiting,
            )
            self._count("challenger", tried, weights=compared)
            self._record(table, weights, request, x_NLD, "challenger", tried)
            if tried.fault is None:
                if weights.shadow and table.copied == "production":
                    self._look_on(table, x_NLD)
                return _routed(tried, "challenger", challenger, weights, failed=None)
            failed = tried
            self._metrics.fallbacks.inc()
        tried = await self._try(
            table.production,
            x_NLD,
            name="production",
            timeout_s=deadline - time.monotonic(),
            max_waiting=self._settings.max_in_flight,
        )
        if failed is None:
            self._count("production", tried, weights=compared)
            self._record(table, weights, request, x_NLD, "production", tried)
            # Also what production failed on, or only its own faults would ever be compared.
            if weights.shadow and table.copied == "challenger":
                self._look_on(table, x_NLD)
        elif weights.shadow:
            # The fallback is production's copy: where both fail, the challenger is no worse.
            self.steps.count("production", weights=compared, seconds=None, fault=tried.fault)
        if tried.fault is not None:
            raise _refusal(tried)
        return _routed(tried, "production", table.production, weights, failed=failed)

    def window(self) -> Window | None:
        """Return what was counted since the step under way began; None without a rollout."""
        return self.steps.window(self._clock())

    async def close(self) -> None:
        """Drop the shadow copies that still wait."""
        for task in self._shadows:
            task.cancel()
        await asyncio.gather(*self._shadows, return_exceptions=True)

    async def _try(
        self, arm: Arm, x_NLD: Input, *, name: str, timeout_s: float, max_waiting: int
    ) -> _Tried:
        with tracing.span(f"arm {name}", version=arm.deployed.version) as span:
            tried = await _predict(arm, x_NLD, timeout_s=timeout_s, max_waiting=max_waiting)
            if tried.fault is not None:
                span.fail(tried.fault)
        return tried

    def _count(self, arm: ArmName, tried: _Tried, *, weights: Weights) -> None:
        # Production may take longer before it is given up, and must not look better for it.
        is_late = tried.fault is None and tried.seconds > self._settings.challenger_deadline_s
        fault: Fault | None = "timeouts" if is_late else tried.fault
        self.steps.count(arm, weights=weights, seconds=tried.seconds, fault=fault)
        self._metrics.count(arm, seconds=tried.seconds, fault=tried.fault)

    def _record(
        self,
        table: Table,
        weights: Weights,
        request: PredictRequest,
        x_NLD: Input,
        arm: ArmName,
        tried: _Tried,
    ) -> None:
        """Keep the first window of a request that was drawn, or that an arm failed on."""
        now = time.monotonic()
        failed = tried.fault is not None
        if not (self._recorder.wants_failure(now) if failed else self._recorder.wants(now)):
            return
        sample = Sample(
            at=self._clock(),
            rollout=weights.rollout,
            epoch=weights.epoch,
            key=None if request.keys is None else request.keys[0],
            arm=arm,
            fault=tried.fault,
            seconds=tried.seconds,
            features=tuple(x_NLD[0, -1].tolist()),
            **{arm: None if failed else _outputs(tried)},
        )
        # Not in_force's: once a lease is over there is nothing to compare.
        other = table.production if arm == "challenger" else table.challenger
        if failed or weights.rollout is None or other is None:
            self._recorder.add(sample)
        elif len(self._shadows) < self._settings.shadow_waiting:
            self._begin(self._pair(sample, other, x_NLD[:1]))

    async def _pair(self, sample: Sample, other: Arm, x_NLD: Input) -> None:
        """Ask the other arm the same; how that ends counts for nothing but the comparison."""
        tried = await self._try(
            other,
            x_NLD,
            name="compared",
            timeout_s=self._settings.shadow_deadline_s,
            max_waiting=self._settings.shadow_waiting,
        )
        theirs = "production" if sample.arm == "challenger" else "challenger"
        answer = None if tried.fault is not None else _outputs(tried)
        self._recorder.add(sample.model_copy(update={theirs: answer}))

    def _begin(self, copy: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(copy)
        self._shadows.add(task)
        task.add_done_callback(self._shadows.discard)

    def _look_on(self, table: Table, x_NLD: Input) -> None:
        if table.shadow is None:
            return
        if len(self._shadows) >= self._settings.shadow_waiting:
            self._drop()
            return
        self._begin(self._compute(table, table.shadow, x_NLD))

    async def _compute(self, table: Table, shadow: Arm, x_NLD: Input) -> None:
        tried = await self._try(
            shadow,
            x_NLD,
            name="shadow",
            timeout_s=self._settings.shadow_deadline_s,
            max_waiting=self._settings.shadow_waiting,
        )
        if not tried.is_begun:  # it made way: says nothing about it
            self._drop()
            return
        self.steps.count(table.copied, weights=table.weights, seconds=None, fault=tried.fault)
        self._metrics.count_shadow(tried.fault)

    def _drop(self) -> None:
        self.steps.count_dropped()
        self._metrics.shadow_dropped.inc()


async def _predict(arm: Arm, x_NLD: Input, *, timeout_s: float, max_waiting: int) -> _Tried:
    began = time.monotonic()
    output: Output | None = None
    fault: Fault | None = None
    place: dict[str, Any] = {}
    is_begun = True
    try:
        output = await arm.predict(x_NLD, timeout_s=timeout_s, max_waiting=max_waiting)
        fault = None if np.isfinite(output).all() else "not_finite"
    except (Busy, NeverStarted):
        # An arm whose queue is full has not answered in time either: one that hangs must not
        # look better for it.
        fault, is_begun = "timeouts", False
    except TimeoutError:
        fault = "timeouts"
    except NetworkFailed as failed:
        fault, place = "errors", failed.place
    seconds = time.monotonic() - began
    return _Tried(output=output, fault=fault, place=place, is_begun=is_begun, seconds=seconds)


def _routed(
    tried: _Tried, name: ArmName, arm: Arm, weights: Weights, *, failed: _Tried | None
) -> Routed:
    assert tried.output is not None, "without a fault there is an output"
    return Routed(
        output=tried.output.mean(axis=0),
        arm=name,
        version=arm.deployed.version,
        candidate=arm.deployed.candidate,
        weights=weights,
        challenger_fault=None if failed is None else failed.fault,
        challenger_error="" if failed is None else failed.place.get("error", ""),
    )


def _outputs(tried: _Tried) -> Outputs:
    """Return what each network said of the first window."""
    assert tried.output is not None, "without a fault there is an output"
    return tuple(map(tuple, tried.output[:, 0].tolist()))


def _refusal(tried: _Tried) -> Refusal:
    """Say why production did not answer."""
    if tried.fault == "timeouts":
        return TooLate(
            f"The model must answer in time, and did not within {tried.seconds:.3f} s.",
            cause="The server is overloaded, or the model hangs.",
            fix="Try again; when it lasts, raise serving.deadline_s or add servers.",
        )
    if tried.fault == "not_finite":
        return WrongInput(
            "The model has no finite answer for these windows.",
            cause="They are far from anything it was trained on.",
            fix="Check the values and their units.",
        )
    return ModelFailed(
        f"The model raised {tried.place['error']}.",
        cause="Its code does not take this input; the server's log has the place by trace id.",
        fix="Tell whoever owns the model.",
        place=tried.place,
    )
