"""OpenTelemetry spans for the methods that change the ledger."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from sluice.base.receipts import Receipt
from sluice.observability import spans
from sluice.registry.records import Promotion, Registration
from sluice.rollout.state import Transition

P = ParamSpec("P")
R = TypeVar("R")


def spanned(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method of the ledger in a span whose attributes are fields of the method's result."""
    name = f"registry.{method.__name__}"

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with spans.span(name) as result_span:
            result = method(*args, **kwargs)
            if result_span.traceparent:
                # record_transition returns nothing. Its last argument, the transition, is used.
                _set_result_attributes(result_span, result if result is not None else args[-1])
        return result

    return call


def _set_result_attributes(result_span: spans.ActiveSpan, result: Any) -> None:
    match result:
        case Registration(version=version, created=created):
            result_span.set_attributes(model=version.model, version=version.number, created=created)
        case Receipt():
            result_span.set_attributes(gate=result.gate, outcome=result.outcome)
        case Promotion():
            result_span.set_attributes(
                model=result.model, version=result.version, moved=result.moved
            )
            result_span.set_attributes(before=result.previous or 0, revision=result.revision)
        case Transition(rollout=rollout):
            result_span.set_attributes(
                model=rollout.model, version=rollout.version, rollout=rollout.id
            )
            result_span.set_attributes(
                outcome=result.outcome, phase=rollout.phase, share=rollout.share
            )
            spans.link_candidate(rollout.candidate)
