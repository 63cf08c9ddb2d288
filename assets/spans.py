"""OpenTelemetry span for each materialization, in the trace of its run."""

import functools
import os
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import dagster as dg

from sluice.observability import spans

TRACEPARENT = "sluice/traceparent"
"""Run tag with the parent span of the run, as W3C Trace Context."""

P = ParamSpec("P")
R = TypeVar("R")


def spanned(
    compute: Callable[Concatenate[dg.AssetExecutionContext, P], R],
) -> Callable[Concatenate[dg.AssetExecutionContext, P], R]:
    """Decorate an asset function, below ``dg.asset``, to record each call as a span.

    If a run has no parent span, its first span becomes the parent of the others and is stored in
    a tag of the run.
    """

    @functools.wraps(compute)
    def call(context: dg.AssetExecutionContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not spans.configure(os.environ, service="sluice"):
            return compute(context, *args, **kwargs)
        run = context.instance.get_run_by_id(context.run.run_id)
        parent = "" if run is None else run.tags.get(TRACEPARENT, "")
        pipeline, name = context.asset_key.path
        with spans.span(
            f"asset {name}", parent=parent, asset=name, pipeline=pipeline, run=context.run.run_id
        ) as span:
            if run is not None and not parent:
                context.instance.add_run_tags(run.run_id, {TRACEPARENT: span.traceparent})
            span.set_attributes(outcome="failed")  # overwritten on success
            result = compute(context, *args, **kwargs)
            span.set_attributes(outcome="materialized")
        return result

    return call
