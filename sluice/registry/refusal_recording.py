"""Keeping what a registry refuses, whichever method refuses it."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from sluice.base.errors import IntegrityError, SluiceError, StorageError
from sluice.registry import refusals
from sluice.registry.lineage import Lineage
from sluice.registry.queries import MAX_NUMBER
from sluice.registry.reading import LedgerReading
from sluice.registry.refusals import Attempt, Refusal
from sluice.rollout.state import Rollout, Transition

P = ParamSpec("P")
R = TypeVar("R")


class RefusalRecording(LedgerReading):
    """A registry that keeps what it refuses."""

    def _record_refusal(
        self, action: Attempt, arguments: Mapping[str, Any], error: SluiceError
    ) -> None:
        refusal = Refusal(
            at=self._clock(),
            action=action,
            error=type(error).__name__,
            refused_because=f"{error.what} {error.cause}".strip(),
            key_id=None if self._keys is None else self._keys.signing.key_id,
            **_about(arguments),
        )
        # The attempt was refused in any case; where nothing can be written, nothing is kept.
        with contextlib.suppress(StorageError), self._database.write() as connection:
            refusals.insert(connection, refusal)


L = TypeVar("L", bound=RefusalRecording)


def records_refusals(
    action: Attempt,
) -> Callable[[Callable[Concatenate[L, P], R]], Callable[Concatenate[L, P], R]]:
    """Make a method of a ledger record each attempt that it refuses.

    A registry that cannot be written refuses as well, and nothing can be recorded then.
    """

    def decorate(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def call(ledger: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(ledger, *args, **kwargs)
            except SluiceError as error:
                if not isinstance(error, StorageError) or isinstance(error, IntegrityError):
                    bound = signature.bind(ledger, *args, **kwargs)
                    bound.apply_defaults()
                    ledger._record_refusal(action, bound.arguments, error)
                raise

        return call

    return decorate


def _about(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an attempt was about, from the arguments of the method that refused it."""
    rollout, transition = arguments.get("before"), arguments.get("transition")
    if isinstance(rollout, Rollout) and isinstance(transition, Transition):
        about: dict[str, Any] = {"model": rollout.model, "version": rollout.version}
        about |= {"actor": transition.actor, "reason": transition.reason}
    else:
        lineage = arguments.get("lineage")
        about = {"model": lineage.model if isinstance(lineage, Lineage) else ""} | dict(arguments)
    expected = arguments.get("expected")
    return {
        "model": str(about["model"]),
        "from_version": _number(expected),
        "to_version": _number(about.get("version")),
        "actor": str(about.get("actor", "")),
        "reason": str(about.get("reason", "")),
    }


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= MAX_NUMBER else None
