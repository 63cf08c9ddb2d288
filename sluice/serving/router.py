"""Which arm answers: the user's place decides, production steps in, the shadow looks on (ROLL-1).

A request keeps the table it began with, so that a swap between two requests fails neither. The
original fault is the challenger's, even when nobody but the counts ever hears of it.
"""

import time
from datetime import datetime

from sluice.registry.client_secret import client_of, network_of
from sluice.registry.reading import Clock
from sluice.rollout.observations import Window
from sluice.rollout.samples import ArmName
from sluice.rollout.weights import Weights
from sluice.serving.arm import Arm
from sluice.serving.comparison import Comparison
from sluice.serving.contract import PredictRequest
from sluice.serving.copies import Copies
from sluice.serving.crowding import Crowding
from sluice.serving.metrics import Metrics
from sluice.serving.random_pool import RandomPool
from sluice.serving.recorder import Recorder
from sluice.serving.sampling import Sampling
from sluice.serving.settings import ServingSettings
from sluice.serving.steps import ARMS, NO_FAULTS, Faults, Steps
from sluice.serving.sticky import is_chosen
from sluice.serving.table import AskedRequest, Table
from sluice.serving.tried import Routed, Tried, answer_of, refusal, try_arm


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
        self._random = RandomPool()
        self._expired: datetime | None = None
        self._crowding = {arm: Crowding() for arm in ARMS}
        self.steps = Steps(table.compared, now=clock())
        self.copies = Copies(settings)
        self._comparison = Comparison(self.steps, self.copies, settings=settings, metrics=metrics)
        self._sampling = Sampling(
            recorder, self.steps.clients, self.copies, settings=settings, clock=clock
        )
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
        asked = AskedRequest(table, weights, compared, request, x_NLD, client, address)
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
            self._sampling.record(asked, "challenger", tried)
            if tried.fault is None:
                if weights.shadow and table.copied == "production":
                    self._comparison.copy(asked, ours)
                else:
                    self._comparison.ask_other("challenger", ours, asked)
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
            self._sampling.record(asked, "production", tried)
            # Also what production failed on, or only its own faults would ever be compared.
            if weights.shadow and table.copied == "challenger":
                self._comparison.copy(asked, theirs)
            else:
                self._comparison.ask_other("production", theirs, asked)
        else:
            # The fallback is the pair: where both fail, the challenger is no worse.
            theirs = self._comparison.faults(tried)
            if weights.shadow:
                self.steps.count("production", weights=compared, seconds=None, fault=tried.fault)
                self._comparison.compare_copies(asked, ours=ours, theirs=theirs)
            elif self._comparison.can_ask(
                ours, asked
            ):  # as for production's, or these alone would count
                self._comparison.compare("challenger", ours, theirs, asked)
        if tried.fault is not None:
            raise refusal(tried)
        return answer_of(tried, "production", table.production, weights, failed=failed)

    def window(self) -> Window | None:
        """Return what was counted since the step under way began; None without a rollout."""
        return self.steps.window(self._clock())

    async def close(self) -> None:
        """Drop the shadow copies that still wait."""
        await self.copies.close()

    def _is_chosen(self, user: str | None, weights: Weights) -> bool:
        """Say whether the challenger answers: always the same of a user, or else by chance."""
        if user is not None:
            return is_chosen(user, salt=weights.salt, share=weights.share)
        # Drawn here: of anything that a client sends, its trace id included, it could send again
        # what reached the challenger once.
        return self._random.uniform() < weights.share

    async def _try_for_client(
        self, arm: Arm, asked: AskedRequest, *, name: ArmName, timeout_s: float, max_waiting: int
    ) -> tuple[Tried, bool]:
        """Ask an arm; return also whether the request waited behind those of one network."""
        crowding = self._crowding[name]
        network, windows = network_of(asked.address), len(asked.x_NLD)
        is_crowded = crowding.enter(network, windows)
        tried = await try_arm(
            arm, asked.x_NLD, name=name, timeout_s=timeout_s, max_waiting=max_waiting
        )
        linger_s = self._settings.challenger_deadline_s
        crowding.leave(network, windows, tried, linger_s=linger_s)
        return tried, is_crowded

    def _count(
        self, arm: ArmName, tried: Tried, asked: AskedRequest, *, is_crowded: bool
    ) -> Faults:
        """Count a request of an arm; return what was wrong with its answer, if it is compared."""
        is_compared = asked.weights.shadow or self._comparison.compare_request(
            arm, asked, is_crowded=is_crowded
        )
        self.steps.count(
            arm,
            weights=asked.compared,
            seconds=tried.computed_s,
            fault=self._comparison.fault(tried),
            address=asked.address,
            is_usual=is_compared,
        )
        self._metrics.count(arm, seconds=tried.seconds, fault=tried.fault)
        return self._comparison.faults(tried) if is_compared else NO_FAULTS
