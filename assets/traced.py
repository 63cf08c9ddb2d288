"""A span for each materialization, in the trace of its run (OBS-1)."""

import functools
import os
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import dagster as dg

from sluice.observability import tracing

TRACEPARENT = "sluice/traceparent"
"""Run tag: the span that a run is a part of, as W3C Trace Context."""

P = ParamSpec("P")
R = TypeVar("R")


def traced(
    make: Callable[Concatenate[dg.AssetExecutionContext, P], R],
) -> Callable[Concatenate[dg.AssetExecutionContext, P], R]:
    """Make each run of an asset's function a span; put it below ``dg.asset``.

    The first span of a run that nobody gave a trace becomes the parent of the others, and is kept
    with the run.
    """

    @functools.wraps(make)
    def call(context: dg.AssetExecutionContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not tracing.start(os.environ, service="sluice"):
            return make(context, *args, **kwargs)
        run = context.instance.get_run_by_id(context.run.run_id)
        parent = "" if run is None else run.tags.get(TRACEPARENT, "")
        pipeline, name = context.asset_key.path
        with tracing.span(
            f"asset {name}", parent=parent, asset=name, pipeline=pipeline, run=context.run.run_id
        ) as told:
            if run is not None and not parent:
                context.instance.add_run_tags(run.run_id, {TRACEPARENT: told.traceparent})
            told.tell(outcome="failed")  # unless it gets to the end
            result = make(context, *args, **kwargs)
            told.tell(outcome="materialized")
        return result

    return call
