"""Samples of requests: a few that are drawn, and what an arm failed on, with both arms' answers."""

import time

from sluice.registry.client_secret import client_name, network_of
from sluice.registry.reading import Clock
from sluice.rollout.samples import ArmName, Sample
from sluice.serving.arm import Arm
from sluice.serving.clients import Clients
from sluice.serving.copies import Copies
from sluice.serving.recorder import Recorder
from sluice.serving.settings import ServingSettings
from sluice.serving.table import AskedRequest
from sluice.serving.tried import Tried, outputs


class Sampling:
    """Draws the samples of one router; touched by the event loop only."""

    def __init__(
        self,
        recorder: Recorder,
        clients: Clients,
        copies: Copies,
        *,
        settings: ServingSettings,
        clock: Clock,
    ) -> None:
        self._recorder = recorder
        self._clients = clients
        self._copies = copies
        self._settings = settings
        self._clock = clock

    def record(self, asked: AskedRequest, arm: ArmName, tried: Tried) -> None:
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
        elif self._copies.has_room:
            self._copies.begin(self._pair(sample, other, asked))

    def _is_drawn(self, asked: AskedRequest, now: float) -> bool:
        if self._recorder.has_enough(now):  # nearly always, and cheaper to ask first
            return False
        clients, per_s = self._clients, self._settings.samples_per_s
        if not (clients.may_draw(asked.client, per_s=per_s, now=now) and self._recorder.wants(now)):
            return False
        clients.draw(asked.client)
        return True

    async def _pair(self, sample: Sample, other: Arm, asked: AskedRequest) -> None:
        """Ask the other arm the same; how that ends counts for nothing but the comparison."""
        tried = await self._copies.ask(other, asked.x_NLD[:1], name="compared")
        theirs = "production" if sample.arm == "challenger" else "challenger"
        answer = None if tried.fault is not None else outputs(tried)
        self._recorder.add(sample.model_copy(update={theirs: answer}))
