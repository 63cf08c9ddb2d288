"""Spans of what changes the ledger (OBS-1)."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from sluice.base.receipts import Receipt
from sluice.observability import tracing
from sluice.registry.records import Promotion, Registration
from sluice.rollout.state import Transition

P = ParamSpec("P")
R = TypeVar("R")


def traced(method: Callable[P, R]) -> Callable[P, R]:
    """Make each call of a ledger's method a span that tells what came of it."""
    name = f"registry.{method.__name__}"

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with tracing.span(name) as told:
            result = method(*args, **kwargs)
            if told.traceparent:
                _tell(told, result if result is not None else args[-1])
        return result

    return call


def _tell(told: tracing.Span, result: Any) -> None:
    match result:
        case Registration(version=version, created=created):
            told.tell(model=version.model, version=version.number, created=created)
        case Receipt():
            told.tell(gate=result.gate, outcome=result.outcome)
        case Promotion():
            told.tell(model=result.model, version=result.version, moved=result.moved)
            told.tell(before=result.previous or 0, revision=result.revision)
        case Transition(rollout=rollout):
            told.tell(model=rollout.model, version=rollout.version, rollout=rollout.id)
            told.tell(outcome=result.outcome, phase=rollout.phase, share=rollout.share)
            tracing.about(rollout.candidate)
