"""Which arm answers: the user's place decides, production steps in, the shadow looks on (ROLL-1).

A request keeps the table it began with, so that a swap between two requests fails neither. The
original fault is the challenger's, even when nobody but the counts ever hears of it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.observability import tracing
from sluice.registry.client_secret import client_name, client_of, network_of
from sluice.registry.reading import Clock
from sluice.rollout.observations import Window
from sluice.rollout.samples import ArmName, Fault, Sample
from sluice.rollout.weights import Weights
from sluice.serving.arm import Arm
from sluice.serving.contract import PredictRequest
from sluice.serving.crowding import Crowding
from sluice.serving.metrics import Metrics
from sluice.serving.random_pool import RandomPool
from sluice.serving.recorder import Recorder
from sluice.serving.settings import ServingSettings
from sluice.serving.steps import ARMS, FAILURES, NO_FAULTS, TIMED, Faults, Steps
from sluice.serving.sticky import is_chosen
from sluice.serving.tried import Routed, Tried, answer_of, outputs, predict_once, refusal

Input = NDArray[np.float32]

_PARTS = 4
"""One client's failures may take up such a part of the room to ask the other arm."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """The arms of one state of the weights."""

    weights: Weights
    production: Arm
    challenger: Arm | None
    shadow: Arm | None
    """The networks of the arm that gets copies, in a thread that makes way for the other arm."""

    compared: Weights = field(init=False)
    """The weights, of production alone while there is no challenger to compare it with."""

    def __post_init__(self) -> None:
        """Settle what every request would ask."""
        alone = self.challenger is None
        compared = self.weights.production_only() if alone else self.weights
        object.__setattr__(self, "compared", compared)

    @property
    def copied(self) -> ArmName:
        """The arm that gets copies while there is a shadow."""
        return "production" if self.weights.share >= 1 else "challenger"


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """One request, and what was in force when it began."""

    table: Table
    weights: Weights
    compared: Weights
    request: PredictRequest
    x_NLD: Input
    client: str
    """As ``client_of`` says."""

    address: str


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
        self._random = RandomPool()
        self._expired: datetime | None = None
        self._shadows: set[asyncio.Task[None]] = set()
        self._asking: Counter[str] = Counter()
        self._crowding = {arm: Crowding() for arm in ARMS}
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

    async def answer(self, request: PredictRequest, *, address: str, deadline: float) -> Routed:
        """Answer by the arm that the user belongs to; without a user the arm is drawn.

        Args:
            request: What is asked.
            address: Where it came from.
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
        client = client_of(request.user, address)
        asked = _Asked(table, weights, compared, request, x_NLD, client, address)
        challenger, failed, ours = table.challenger, None, NO_FAULTS
        if (
            challenger is not None
            and weights.rollout is not None
            and self._is_chosen(request.user, weights)
        ):
            tried, is_crowded = await self._try_for_client(
                challenger,
                asked,
                name="challenger",
                timeout_s=min(self._settings.challenger_deadline_s, deadline - time.monotonic()),
                max_waiting=self._settings.challenger_waiting,
            )
            ours = self._count("challenger", tried, asked, is_crowded=is_crowded)
            self._record(asked, "challenger", tried)
            if tried.fault is None:
                if weights.shadow and table.copied == "production":
                    self._look_on(asked, ours)
                else:
                    self._ask_other("challenger", ours, asked)
                return answer_of(tried, "challenger", challenger, weights, failed=None)
            failed = tried
            self._metrics.fallbacks.inc()
        tried, is_crowded = await self._try_for_client(
            table.production,
            asked,
            name="production",
            timeout_s=deadline - time.monotonic(),
            max_waiting=self._settings.max_in_flight,
        )
        if failed is None:
            theirs = self._count("production", tried, asked, is_crowded=is_crowded)
            self._record(asked, "production", tried)
            # Also what production failed on, or only its own faults would ever be compared.
            if weights.shadow and table.copied == "challenger":
                self._look_on(asked, theirs)
            else:
                self._ask_other("production", theirs, asked)
        else:
            # The fallback is the pair: where both fail, the challenger is no worse.
            theirs = self._faults(tried)
            if weights.shadow:
                self.steps.count("production", weights=compared, seconds=None, fault=tried.fault)
                self._compare_copies(asked, ours=ours, theirs=theirs)
            elif self._can_ask(ours, asked):  # as for production's, or these alone would count
                self._compare("challenger", ours, theirs, asked)
        if tried.fault is not None:
            raise refusal(tried)
        return answer_of(tried, "production", table.production, weights, failed=failed)

    def window(self) -> Window | None:
        """Return what was counted since the step under way began; None without a rollout."""
        return self.steps.window(self._clock())

    async def close(self) -> None:
        """Drop the shadow copies that still wait."""
        for task in self._shadows:
            task.cancel()
        await asyncio.gather(*self._shadows, return_exceptions=True)

    def _is_chosen(self, user: str | None, weights: Weights) -> bool:
        """Say whether the challenger answers: always the same of a user, or else by chance."""
        if user is not None:
            return is_chosen(user, salt=weights.salt, share=weights.share)
        # Drawn here: of anything that a client sends, its trace id included, it could send again
        # what reached the challenger once.
        return self._random.uniform() < weights.share

    async def _try(
        self, arm: Arm, x_NLD: Input, *, name: str, timeout_s: float, max_waiting: int
    ) -> Tried:
        with tracing.span(f"arm {name}", version=arm.deployed.version) as span:
            tried = await predict_once(arm, x_NLD, timeout_s=timeout_s, max_waiting=max_waiting)
            if tried.fault is not None:
                span.fail(tried.fault)
        return tried

    async def _try_for_client(
        self, arm: Arm, asked: _Asked, *, name: ArmName, timeout_s: float, max_waiting: int
    ) -> tuple[Tried, bool]:
        """Ask an arm; return also whether the request waited behind those of one network."""
        crowding = self._crowding[name]
        network, windows = network_of(asked.address), len(asked.x_NLD)
        is_crowded = crowding.enter(network, windows)
        tried = await self._try(
            arm, asked.x_NLD, name=name, timeout_s=timeout_s, max_waiting=max_waiting
        )
        linger_s = self._settings.challenger_deadline_s
        crowding.leave(network, windows, tried, linger_s=linger_s)
        return tried, is_crowded

    def _count(self, arm: ArmName, tried: Tried, asked: _Asked, *, is_crowded: bool) -> Faults:
        """Count a request of an arm; return what was wrong with its answer, if it is compared."""
        is_compared = asked.weights.shadow or self._compare_request(
            arm, asked, is_crowded=is_crowded
        )
        self.steps.count(
            arm,
            weights=asked.compared,
            seconds=tried.computed_s,
            fault=self._fault(tried),
            address=asked.address,
            is_usual=is_compared,
        )
        self._metrics.count(arm, seconds=tried.seconds, fault=tried.fault)
        return self._faults(tried) if is_compared else NO_FAULTS

    def _fault(self, tried: Tried) -> Fault | None:
        # Production may take longer before it is given up, and must not look better for it.
        is_late = tried.fault is None and tried.seconds > self._settings.challenger_deadline_s
        return "timeouts" if is_late else tried.fault

    def _faults(self, tried: Tried) -> Faults:
        return self.steps.faults(seconds=tried.computed_s, fault=self._fault(tried))

    @property
    def _has_room(self) -> bool:
        return len(self._shadows) < self._settings.shadow_waiting

    def _compare_request(self, arm: ArmName, asked: _Asked, *, is_crowded: bool = False) -> bool:
        return self.steps.compare_request(
            arm,
            weights=asked.compared,
            client=asked.client,
            address=asked.address,
            now=time.monotonic(),
            is_crowded=is_crowded,
        )

    def _compare(self, arm: ArmName, ours: Faults, theirs: Faults, asked: _Asked) -> None:
        self.steps.compare_faults(
            arm,
            ours,
            theirs,
            weights=asked.compared,
            client=asked.client,
            address=asked.address,
            now=time.monotonic(),
        )

    def _would_count(self, arm: ArmName, faults: Faults, asked: _Asked) -> bool:
        return bool(faults) and self.steps.would_count(
            arm,
            faults,
            weights=asked.compared,
            client=asked.client,
            address=asked.address,
            now=time.monotonic(),
        )

    def _compare_copies(self, asked: _Asked, *, ours: Faults, theirs: Faults) -> None:
        """Take a request that both arms answered into the evidence of both."""
        compared = [self._compare_request(arm, asked) for arm in ARMS]
        if all(compared):
            self._compare("challenger", ours, theirs, asked)
            self._compare("production", theirs, ours, asked)

    def _ask_other(self, arm: ArmName, ours: Faults, asked: _Asked) -> None:
        """Ask the other arm what this one did not do well; what both do badly is no evidence."""
        other = asked.table.production if arm == "challenger" else asked.table.challenger
        if arm == "production" and ours <= TIMED:  # whatever the challenger would say
            self._compare(arm, ours, NO_FAULTS, asked)
        elif (
            other is not None and self._would_count(arm, ours, asked) and self._can_ask(ours, asked)
        ):
            self._asking[asked.client] += 1
            self._begin(self._judge(arm, ours, other, asked))

    def _can_ask(self, faults: Faults, asked: _Asked) -> bool:
        """Say whether there is room to ask the other arm; one client has a part of the room."""
        if not faults or asked.compared.rollout is None:
            return False
        part = max(1, self._settings.shadow_waiting // _PARTS)
        if self._asking[asked.client] >= part:
            return False
        if not self._has_room and faults & FAILURES:
            self._drop()
        return self._has_room

    async def _judge(self, arm: ArmName, ours: Faults, other: Arm, asked: _Asked) -> None:
        tried = await self._try(
            other,
            asked.x_NLD,
            name="compared",
            timeout_s=self._settings.shadow_deadline_s,
            max_waiting=self._settings.shadow_waiting,
        )
        self._asking[asked.client] -= 1
        if not self._asking[asked.client]:
            del self._asking[asked.client]
        self._compare(arm, ours, self._faults(tried), asked)

    def _record(self, asked: _Asked, arm: ArmName, tried: Tried) -> None:
        """Keep the first window of a request that was drawn, or that an arm failed on."""
        now = time.monotonic()
        failed = tried.fault is not None
        if not (self._recorder.wants_failure(now) if failed else self._is_drawn(asked, now)):
            return
        table, weights, request, x_NLD = asked.table, asked.weights, asked.request, asked.x_NLD
        sample = Sample(
            at=self._clock(),
            rollout=weights.rollout,
            epoch=weights.epoch,
            key=None if request.keys is None else request.keys[0],
            client=client_name(asked.client, secret=weights.secret),
            origin=client_name(network_of(asked.address), secret=weights.secret),
            arm=arm,
            fault=tried.fault,
            seconds=tried.seconds,
            features=tuple(x_NLD[0, -1].tolist()),
            **{arm: None if failed else outputs(tried)},
        )
        # Not in_force's: once a lease is over there is nothing to compare.
        other = table.production if arm == "challenger" else table.challenger
        if failed or weights.rollout is None or other is None:
            self._recorder.add(sample)
        elif self._has_room:
            self._begin(self._pair(sample, other, x_NLD[:1]))

    def _is_drawn(self, asked: _Asked, now: float) -> bool:
        if self._recorder.has_enough(now):  # nearly always, and cheaper to ask first
            return False
        clients, per_s = self.steps.clients, self._settings.samples_per_s
        if not (clients.may_draw(asked.client, per_s=per_s, now=now) and self._recorder.wants(now)):
            return False
        clients.draw(asked.client)
        return True

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
        answer = None if tried.fault is not None else outputs(tried)
        self._recorder.add(sample.model_copy(update={theirs: answer}))

    def _begin(self, copy: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(copy)
        self._shadows.add(task)
        task.add_done_callback(self._shadows.discard)

    def _look_on(self, asked: _Asked, faults: Faults) -> None:
        """Give the arm that answers nobody a copy; ``faults`` are those of the other's answer."""
        if asked.table.shadow is None:
            return
        if not self._has_room:
            self._drop()
            return
        self._begin(self._compute(asked, asked.table.shadow, faults))

    async def _compute(self, asked: _Asked, shadow: Arm, faults: Faults) -> None:
        tried = await self._try(
            shadow,
            asked.x_NLD,
            name="shadow",
            timeout_s=self._settings.shadow_deadline_s,
            max_waiting=self._settings.shadow_waiting,
        )
        if not tried.is_begun:  # it made way: says nothing about it
            self._drop()
            return
        copied = asked.table.copied
        self.steps.count(copied, weights=asked.table.weights, seconds=None, fault=tried.fault)
        self._metrics.count_shadow(tried.fault)
        of_copy = self.steps.faults(seconds=None, fault=tried.fault)
        ours, theirs = (of_copy, faults) if copied == "challenger" else (faults, of_copy)
        self._compare_copies(asked, ours=ours, theirs=theirs)

    def _drop(self) -> None:
        self.steps.count_dropped()
        self._metrics.shadow_dropped.inc()
