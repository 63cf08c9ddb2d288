"""Responses to generated requests match the OpenAPI schema of the app and are never 5xx.

Schemathesis generates the requests from /openapi.json of the app.
"""

import io
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.app import build_app
from sluice.serving.hosts import TrustedHosts
from sluice.serving.log import json_log
from sluice.serving.metrics import ROUTES
from sluice.serving.rollback import RollbackWebhook
from sluice.serving.server import open_serving
from sluice.serving.tokens import SCOPES, Grant, Tokens, digest_token
from sluice.serving.traffic_split import InMemoryTrafficSplit
from tests.sluice.serving.serving_samples import (
    MODEL,
    SECRET,
    LinearNetwork,
    candidate,
    deployed,
    quick_settings,
)
from tests.sluice.serving.test_rollback_webhook import Rollbacks

TOKEN = {"authorization": f"Bearer {SECRET}"}
TOKEN_ROUTES = (
    "POST /predict",
    "POST /hooks/rollback",
    "GET /model",
    "GET /rollout",
    "GET /metrics",
    "GET /problems",
)
PUBLIC_ROUTES = ("GET /healthz", "GET /readyz")

# Tests set the token themselves, so the check of ignored authentication does not apply. Columns
# that are valid by the schema may be unknown to the model.
EXCLUDED_CHECKS = [ignored_auth, positive_data_acceptance]

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers()
WELL_FORMED_BODIES = st.fixed_dictionaries(
    {
        "columns": st.permutations(["a", "b"]),
        "windows": st.lists(
            st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=3, max_size=3),
            min_size=1,
            max_size=5,
        ),
    },
    optional={"user": st.text(min_size=1, max_size=256), "model": st.just(MODEL)},
)


@pytest.fixture(scope="module")
def schema() -> Any:
    """The OpenAPI schema of an app in this process, during a canary rollout."""
    models = {
        model.candidate: model
        for model in (
            deployed("one", 1, LinearNetwork(1.0)),
            deployed("two", 2, LinearNetwork(2.0)),
        )
    }
    split = TrafficSplit(
        epoch=1,
        production=candidate("one"),
        challenger=candidate("two"),
        rollout="fuzz",
        share=0.5,
    )
    serving = open_serving(
        MODEL,
        InMemoryTrafficSplit(split),
        models.__getitem__,
        settings=quick_settings(requests_per_s=1e6, burst_requests=1_000_000),
        tokens=Tokens((Grant(name="all", digest=digest_token(SECRET), scopes=frozenset(SCOPES)),)),
        webhook=RollbackWebhook(rollback=Rollbacks()),
        clock=lambda: datetime.now(UTC),
        log=json_log(io.StringIO()),
        reports=None,
        isolate=None,
    )
    return schemathesis.openapi.from_asgi(
        "/openapi.json", build_app(serving, TrustedHosts("127.0.0.1", ["testserver"]))
    )


def test_all_routes_are_described(schema: Any) -> None:
    assert set(schema) | {"/openapi.json"} == set(ROUTES)
    assert {operation_result.ok().label for operation_result in schema.get_all_operations()} == {
        *TOKEN_ROUTES,
        *PUBLIC_ROUTES,
    }


@pytest.mark.slow
def test_responses_to_generated_requests_match_the_schema(schema: Any) -> None:
    results = _fuzz(schema, examples=1)

    assert _guarded_statuses_without_token(results) == {401}
    assert _read_statuses_with_token(results) == {200}


@pytest.mark.exhaustive
def test_responses_to_many_generated_requests_match_the_schema(schema: Any) -> None:
    results = _fuzz(schema, examples=200)

    assert _guarded_statuses_without_token(results) == {401}
    assert _read_statuses_with_token(results) == {200}


@pytest.mark.slow
def test_well_formed_windows_get_200_or_422(schema: Any) -> None:
    assert _predict(schema, examples=20) == {200, 422}


@pytest.mark.exhaustive
def test_many_well_formed_windows_get_200_or_422(schema: Any) -> None:
    assert _predict(schema, examples=3000) == {200, 422}


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzResult:
    """Statuses of the responses to one kind of request."""

    label: str
    mode: GenerationMode
    has_token: bool
    statuses: set[int]


def _guarded_statuses_without_token(results: list[FuzzResult]) -> set[int]:
    selected = [a for a in results if a.label in TOKEN_ROUTES and not a.has_token]
    assert {a.label for a in selected} == set(TOKEN_ROUTES)
    return set().union(*(a.statuses for a in selected))


def _read_statuses_with_token(results: list[FuzzResult]) -> set[int]:
    reads = {label for label in (*TOKEN_ROUTES, *PUBLIC_ROUTES) if not label.startswith("POST")}
    selected = [a for a in results if a.label in reads and a.has_token and a.mode.is_positive]
    assert {a.label for a in selected} == reads
    return set().union(*(a.statuses for a in selected))


def _fuzz(schema: Any, *, examples: int) -> list[FuzzResult]:
    """Send valid and invalid requests, with and without the token.

    Each response is validated against the schema.
    """
    results = []
    for operation_result in schema.get_all_operations():
        operation = operation_result.ok()
        for mode in GenerationMode:
            if operation.label in PUBLIC_ROUTES and mode.is_negative:
                continue  # the request has no part that could be invalid
            for headers in (TOKEN, {}):
                results.append(
                    FuzzResult(
                        label=operation.label,
                        mode=mode,
                        has_token=bool(headers),
                        statuses=_statuses(operation, mode, headers, examples=examples),
                    )
                )
    return results


def _statuses(
    operation: Any, mode: GenerationMode, headers: dict[str, str], *, examples: int
) -> set[int]:
    statuses = set()

    @_fuzz_settings(examples)
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call_and_validate(headers=headers, excluded_checks=EXCLUDED_CHECKS)
        statuses.add(response.status_code)

    send()
    return statuses


def _predict(schema: Any, *, examples: int) -> set[int]:
    statuses = set()
    operation = schema["/predict"]["POST"]

    @_fuzz_settings(examples)
    @given(body=WELL_FORMED_BODIES)
    def send(body: Any) -> None:
        case = operation.Case(body=body, media_type="application/json")
        response = case.call_and_validate(headers=TOKEN, excluded_checks=EXCLUDED_CHECKS)
        statuses.add(response.status_code)

    send()
    return statuses


def _fuzz_settings(examples: int) -> settings:
    """Return settings that generate the same requests each time, without a deadline."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
