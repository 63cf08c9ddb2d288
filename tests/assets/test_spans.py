"""The spans of a run's assets share one trace, whose context is a tag of the run (OBS-1)."""

import os
from collections.abc import Iterator

import dagster as dg
import pytest

from sluice.assets.spans import TRACEPARENT, spanned
from sluice.observability import spans
from tests.support.otlp_receiver import Receiver, run_receiver


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with run_receiver() as receiver:
        monkeypatch.setenv(spans.ENDPOINT_VARIABLE, receiver.url)
        try:
            yield receiver
        finally:
            spans.shutdown()


@dg.asset(key=["pipe", "rows"])
@spanned
def rows(context: dg.AssetExecutionContext) -> int:
    assert context.run.run_id
    return 3


@dg.asset(key=["pipe", "model"], ins={"rows": dg.AssetIn(key=["pipe", "rows"])})
@spanned
def model(context: dg.AssetExecutionContext, rows: int) -> int:
    assert context.run.run_id
    if rows:
        raise RuntimeError("secret")
    return rows


@pytest.mark.parametrize("traceparent", ["", "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"])
def test_assets_of_a_run_share_its_trace(receiver: Receiver, traceparent: str) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [rows, model],
            instance=instance,
            tags={TRACEPARENT: traceparent} if traceparent else {},
            raise_on_error=False,
        )
        run = instance.get_run_by_id(result.run_id)
    spans.shutdown()

    first, second = receiver.one("asset rows"), receiver.one("asset model")
    assert run is not None
    context_of_run = spans.TraceContext.parse(run.tags[TRACEPARENT])
    assert context_of_run is not None
    assert first.trace == second.trace == context_of_run.trace_id
    assert second.parent == context_of_run.span_id
    assert first.parent == (context_of_run.span_id if traceparent else "")
    assert first.attributes == {
        "sluice.asset": "rows",
        "sluice.pipeline": "pipe",
        "sluice.run": result.run_id,
        "sluice.outcome": "materialized",
    }
    assert (second.attributes["sluice.outcome"], second.error) == ("failed", "RuntimeError")


def test_asset_runs_unchanged_without_an_endpoint() -> None:
    assert spans.ENDPOINT_VARIABLE not in os.environ
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([rows], instance=instance)
        run = instance.get_run_by_id(result.run_id)

    assert result.output_for_node("pipe__rows") == 3
    assert run is not None
    assert TRACEPARENT not in run.tags
