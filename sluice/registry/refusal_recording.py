"""Decorator for methods of the ledger: records attempts to change the registry that they reject."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from sluice.base.errors import IntegrityError, SluiceError, StorageError
from sluice.registry import refusals
from sluice.registry.lineage import Lineage
from sluice.registry.queries import MAX_VERSION_NUMBER
from sluice.registry.readonly import ReadonlyLedger
from sluice.registry.refusals import AttemptedAction, RefusedAttempt
from sluice.rollout.state import Rollout, Transition

P = ParamSpec("P")
R = TypeVar("R")


class RefusalRecordingLedger(ReadonlyLedger):
    """Ledger that records the attempts that it rejects."""

    def _record_refusal(
        self, action: AttemptedAction, arguments: Mapping[str, Any], error: SluiceError
    ) -> None:
        refusal = RefusedAttempt(
            at=self._clock(),
            action=action,
            error=type(error).__name__,
            refused_because=f"{error.what} {error.cause}".strip(),
            key_id=None if self._keys is None else self._keys.signing_key.key_id,
            **_attempt_fields(arguments),
        )
        # If the database is not writable, the record is lost, but the attempt is still rejected.
        with contextlib.suppress(StorageError), self._database.write() as connection:
            refusals.insert(connection, refusal)


L = TypeVar("L", bound=RefusalRecordingLedger)


def records_refusals(
    action: AttemptedAction,
) -> Callable[[Callable[Concatenate[L, P], R]], Callable[Concatenate[L, P], R]]:
    """Return a decorator that records each attempt that a method of the ledger rejects.

    An attempt that fails because the registry or the anchor cannot be read or written is not
    recorded.
    """

    def decorate(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def call(ledger: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(ledger, *args, **kwargs)
            except SluiceError as error:
                if not isinstance(error, StorageError) or isinstance(error, IntegrityError):
                    bound_arguments = signature.bind(ledger, *args, **kwargs)
                    bound_arguments.apply_defaults()
                    ledger._record_refusal(action, bound_arguments.arguments, error)
                raise

        return call

    return decorate


def _attempt_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return model, versions, actor and reason of an attempt from the arguments of its method."""
    # The method record_transition has the arguments "rollout" and "transition". The arguments of
    # the other methods have the names of the fields.
    rollout, transition = arguments.get("rollout"), arguments.get("transition")
    if isinstance(rollout, Rollout) and isinstance(transition, Transition):
        values: dict[str, Any] = {"model": rollout.model, "version": rollout.version}
        values |= {"actor": transition.actor, "reason": transition.reason}
    else:
        lineage = arguments.get("lineage")
        values = {"model": lineage.model if isinstance(lineage, Lineage) else ""} | dict(arguments)
    expected = arguments.get("expected")
    return {
        "model": str(values["model"]),
        "from_version": _version_number(expected),
        "to_version": _version_number(values.get("version")),
        "actor": str(values.get("actor", "")),
        "reason": str(values.get("reason", "")),
    }


def _version_number(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= MAX_VERSION_NUMBER else None
