"""Whatever is sent to any route, the app answers as its own description says, and never with 5xx.

The requests come from schemathesis, which reads /openapi.json of the very app.
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
GUARDED = (
    "POST /predict",
    "POST /hooks/rollback",
    "GET /model",
    "GET /rollout",
    "GET /metrics",
    "GET /problems",
)
OPEN = ("GET /healthz", "GET /readyz")

# The right token is put into every request on purpose, whatever the generator thinks of it; and
# columns that fit the description need not be those of the model.
NOT_ASKED = [ignored_auth, positive_data_acceptance]

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers()
FITS = st.fixed_dictionaries(
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
    """The description of an app with a canary, in this process."""
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
    assert {found.ok().label for found in schema.get_all_operations()} == {*GUARDED, *OPEN}


@pytest.mark.slow
def test_generated_requests_are_answered_as_described(schema: Any) -> None:
    answers = _fuzz(schema, examples=1)

    assert _guarded_without_token(answers) == {401}
    assert _reads_with_token(answers) == {200}


@pytest.mark.exhaustive
def test_many_generated_requests_are_answered_as_described(schema: Any) -> None:
    answers = _fuzz(schema, examples=200)

    assert _guarded_without_token(answers) == {401}
    assert _reads_with_token(answers) == {200}


@pytest.mark.slow
def test_windows_that_fit_are_predicted_or_refused_whatever_their_numbers(schema: Any) -> None:
    assert _predict(schema, examples=20) == {200, 422}


@pytest.mark.exhaustive
def test_many_windows_that_fit_are_predicted_or_refused(schema: Any) -> None:
    assert _predict(schema, examples=3000) == {200, 422}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Statuses of the answers to one kind of requests."""

    label: str
    mode: GenerationMode
    has_token: bool
    statuses: set[int]


def _guarded_without_token(answers: list[Answers]) -> set[int]:
    asked = [a for a in answers if a.label in GUARDED and not a.has_token]
    assert {a.label for a in asked} == set(GUARDED)
    return set().union(*(a.statuses for a in asked))


def _reads_with_token(answers: list[Answers]) -> set[int]:
    reads = {label for label in (*GUARDED, *OPEN) if not label.startswith("POST")}
    asked = [a for a in answers if a.label in reads and a.has_token and a.mode.is_positive]
    assert {a.label for a in asked} == reads
    return set().union(*(a.statuses for a in asked))


def _fuzz(schema: Any, *, examples: int) -> list[Answers]:
    """Send what fits the description and what does not, with the token and without.

    Every answer is compared with the description as it comes.
    """
    answers = []
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode:
            if operation.label in OPEN and mode.is_negative:
                continue  # nothing is sent that could be wrong
            for headers in (TOKEN, {}):
                answers.append(
                    Answers(
                        label=operation.label,
                        mode=mode,
                        has_token=bool(headers),
                        statuses=_statuses(operation, mode, headers, examples=examples),
                    )
                )
    return answers


def _statuses(
    operation: Any, mode: GenerationMode, headers: dict[str, str], *, examples: int
) -> set[int]:
    statuses = set()

    @_calm(examples)
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        answer = case.call_and_validate(headers=headers, excluded_checks=NOT_ASKED)
        statuses.add(answer.status_code)

    send()
    return statuses


def _predict(schema: Any, *, examples: int) -> set[int]:
    statuses = set()
    operation = schema["/predict"]["POST"]

    @_calm(examples)
    @given(body=FITS)
    def send(body: Any) -> None:
        case = operation.Case(body=body, media_type="application/json")
        answer = case.call_and_validate(headers=TOKEN, excluded_checks=NOT_ASKED)
        statuses.add(answer.status_code)

    send()
    return statuses


def _calm(examples: int) -> settings:
    """Return settings under which the same requests are made each time, however slow."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
