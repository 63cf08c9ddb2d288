"""Samples a few random requests and a few failed requests.

A random request is stored with its output, and during a rollout with the outputs of both arms. A
failed request is stored without outputs. Samples are used to detect drift and to compare the
predictions of the arms.
"""

import time

import numpy as np

from sluice.registry.client_names import client_pseudonym, subnet_of
from sluice.registry.readonly import Clock
from sluice.rollout.samples import ArmName, Sample, SampledEmbedding
from sluice.serving.arm import ArmWorker
from sluice.serving.arm_result import ArmResult, first_element_outputs
from sluice.serving.background_requests import BackgroundRequests
from sluice.serving.client_limits import ClientLimits
from sluice.serving.model_arrays import ModelArrays, as_input, element_digests, first_element
from sluice.serving.routing_table import RequestContext
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.settings import ServingSettings


class RequestSampler:
    """Samples the requests of one router; used by the event loop only."""

    def __init__(
        self,
        buffer: SampleBuffer,
        clients: ClientLimits,
        background: BackgroundRequests,
        *,
        settings: ServingSettings,
        clock: Clock,
    ) -> None:
        self._buffer = buffer
        self._clients = clients
        self._background = background
        self._settings = settings
        self._clock = clock

    def record(self, context: RequestContext, arm: ArmName, result: ArmResult) -> None:
        """Store the first element of a request that is drawn at random or failed.

        The rates of both kinds of samples are limited.
        """
        now = time.monotonic()
        has_failed = result.fault is not None
        if has_failed:
            is_sampled = self._buffer.reserve_failure(now)
        else:
            is_sampled = self._reserve_sample(context, now)
        if not is_sampled:
            return
        table, split, request = context.table, context.split, context.request
        features, content_digest = _describe_element(context)
        sample = Sample(
            at=self._clock(),
            rollout=split.rollout,
            epoch=split.epoch,
            # ``keys`` are the index labels of the rows to predict from.
            key=None if request.keys is None else request.keys[0],
            client=client_pseudonym(context.client, secret=split.secret),
            origin=client_pseudonym(subnet_of(context.address), secret=split.secret),
            arm=arm,
            fault=result.fault,
            seconds=result.seconds,
            features=features,
            content=content_digest,
            **{arm: None if has_failed else first_element_outputs(result)},
        )
        # ``split`` is the split in force: after the end of the lease it has no rollout, and the
        # sample needs no output of the other arm.
        other_worker = table.production if arm == "challenger" else table.challenger
        is_compared = not has_failed and split.rollout is not None and other_worker is not None
        is_embedded = not has_failed and table.production.deployed.embedder is not None
        if (is_compared or is_embedded) and self._background.has_room:
            compared_worker = other_worker if is_compared else None
            self._background.start(
                self._complete(sample, compared_worker, context, is_embedded=is_embedded)
            )
        # If there is no room in the background, a sample of a rollout is dropped, because it would
        # lack the output of the other arm. Other samples are added without an embedding.
        elif not is_compared:
            self._buffer.add(sample)

    def _reserve_sample(self, context: RequestContext, now: float) -> bool:
        """Return whether a request is sampled; if it is, count it for its client."""
        if self._buffer.is_exhausted(now):  # a cheap check first, which is nearly always true
            return False
        clients, per_s = self._clients, self._settings.samples_per_s
        if not (
            clients.may_sample(context.client, per_s=per_s, now=now)
            and self._buffer.reserve_sample(now)
        ):
            return False
        clients.record_sample(context.client)
        return True

    async def _complete(
        self,
        sample: Sample,
        compared_worker: ArmWorker | None,
        context: RequestContext,
        *,
        is_embedded: bool,
    ) -> None:
        """Predict with the other arm and embed the first element if needed; then add the sample.

        Runs in the background, so no client waits.
        """
        x = first_element(context.x)
        if compared_worker is not None:
            result = await self._background.predict(compared_worker, x, name="compared")
            other_name = "production" if sample.arm == "challenger" else "challenger"
            outputs = None if result.fault is not None else first_element_outputs(result)
            sample = sample.model_copy(update={other_name: outputs})
        if is_embedded:
            try:
                embedding = await self._embedding(context.table.production, x)
                sample = sample.model_copy(update={"embedding": embedding})
            finally:  # a server that ends cancels the embedding, but keeps the sample
                self._buffer.add(sample)
        else:
            self._buffer.add(sample)

    async def _embedding(self, arm: ArmWorker, x: ModelArrays) -> SampledEmbedding | None:
        """Return the embedding of one element with six significant digits.

        Return None if the embedding cannot be computed or is not finite.
        """
        values = await self._background.embed(arm, x)
        embedder = arm.deployed.embedder
        if values is None or embedder is None or not np.isfinite(values).all():
            return None
        return SampledEmbedding(
            network=embedder.weights_digest,
            values=tuple(float(f"{value:.6g}") for value in values[0].tolist()),
        )


def _describe_element(context: RequestContext) -> tuple[tuple[float, ...], str | None]:
    """Return the values of the first element that are tested for drift, and the element's digest.

    The values of a window are its last row. A window has no digest (None).
    """
    codec = context.table.production.deployed.codec
    if codec is None:
        assert isinstance(context.x, np.ndarray), "windows are one array"
        return tuple(context.x[0, -1].tolist()), None
    first_input = first_element(context.x)
    (digest,) = element_digests(first_input)
    try:
        features = codec.watched_values(context.request, as_input(first_input))
    except Exception:  # user code may raise anything, and no request may fail because of a sample
        features = ()
    return features, digest.hex()
