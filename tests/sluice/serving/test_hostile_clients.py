"""One client can neither end a healthy rollout nor hide a faulty challenger (ROLL-2)."""

import contextlib
import json
from collections.abc import Iterator

import httpx
import pytest
from torch import Tensor, nn

from sluice.rollout.observations import TrafficCounts
from sluice.rollout.state import Rollout
from sluice.rollout.state_machine import advance
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.client_limits import BREACH_FAULTS
from sluice.serving.sticky import is_chosen
from tests.sluice.rollout.rollout_samples import PRODUCTION, make_rollout
from tests.sluice.serving.serving_samples import (
    Live,
    Raises,
    Says,
    body,
    candidate,
    deployed,
    live,
    quick_settings,
)

TOLD = "r1"
"""Id of the rollout, which every answer holds."""
OWN = "0f" * 32
SHARE = 0.25
HUGE = 9e18
"""Within the bounds of a value; the models make infinity of it."""
TRIGGER = 666.0


class Powers(Says):
    """Its number plus the last row, cubed: infinity for values that are taken."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 3


class Picky(Powers):
    """Healthy, but for one value that no honest client sends."""

    def forward(self, x: Tensor) -> Tensor:
        if (x[:, -1] == TRIGGER).any():
            raise RuntimeError("that one")
        return super().forward(x)


class Counts(Powers):
    """Knows how often it was asked."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@contextlib.contextmanager
def rolling(
    challenger: nn.Module, *, production: nn.Module | None = None, share: float = SHARE
) -> Iterator[Live]:
    """Run a server in the middle of a rollout."""
    models = [deployed("one", 1, production or Powers(1.0)), deployed("two", 2, challenger)]
    split = TrafficSplit(
        epoch=make_rollout().epoch,
        production=candidate("one"),
        challenger=candidate("two"),
        rollout=TOLD,
        secret=OWN,
        share=share,
        shadow=share in (0.0, 1.0),
    )
    # A busy machine is not what is tested: neither deadline is near.
    settings = quick_settings(challenger_deadline_s=4.0, deadline_s=9.0, shadow_deadline_s=9.0)
    with live({m.candidate: m for m in models}, split, settings=settings) as server:
        yield server


@pytest.fixture
def twins() -> Iterator[Live]:
    with rolling(Powers(1.0)) as server:
        yield server


def window(server: Live) -> TrafficCounts:
    """Return the counts once all comparisons with the other arm are finished."""
    server.wait_for(lambda: not server.serving.router.background.tasks)
    return TrafficCounts.model_validate(server.client.get("/rollout").json()["window"])


def looked(server: Live) -> Rollout:
    seen = window(server)
    at = make_rollout()
    seen = seen.model_copy(update={"since": at.step_since, "until": at.checked_at})
    return advance(at, seen, now=at.checked_at, production=PRODUCTION).rollout


def honest(server: Live, count: int) -> None:
    for number in range(count):
        assert server.ask(1.0, user=f"honest {number}").status_code == 200


def on(server: Live, arm: str, count: int) -> list[str]:
    """Return users that an arm answers: found out by asking, as any client can."""
    found: list[str] = []
    for number in range(10_000):
        user = f"hostile {number}"
        said = server.ask(1.0, user=user).json()
        if ("challenger" if said["fallback"] else said["arm"]) == arm:
            found.append(user)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} users are on {arm}")


def test_public_data_does_not_reveal_the_users_of_the_challenger(twins: Live) -> None:
    told = twins.ask(1.0).json()["rollout"]
    chosen = [u for u in map(str, range(1000)) if is_chosen(u, salt=told, share=SHARE)][:60]
    arms = [twins.ask(1.0, user=user).json()["arm"] for user in chosen]

    assert arms.count("challenger") < 30, "of 60 it is 15 on average"
    said = twins.client.get("/model").text + twins.client.get("/rollout").text
    said += twins.client.get("/metrics").text + twins.log.getvalue() + repr(twins.source.split)
    assert OWN not in said


def test_a_request_without_a_user_is_assigned_at_random(twins: Live) -> None:
    trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    content = json.dumps({"columns": ["a", "b"], "windows": [[[0.0, 0.0]] * 3]})
    headers = trace | {"content-type": "application/json"}
    arms = {
        twins.client.post("/predict", content=content, headers=headers).json()["arm"]
        for _ in range(60)
    }

    assert arms == {"challenger", "production"}


def test_values_out_of_bounds_are_client_errors_and_no_fault_of_an_arm(twins: Live) -> None:
    """60 such requests of users on the challenger ended the rollout of a twin within 2 s."""
    users = on(twins, "challenger", 5)
    before = window(twins)
    statuses = {twins.ask(3e38, user=user).status_code for user in users * 12}
    after = window(twins)

    assert statuses == {422}
    assert after.challenger == before.challenger
    assert (
        twins.metrics()['sluice_http_requests_total{method="POST",route="/predict",status="422"}']
        == 60
    )
    assert looked(twins).phase == "rolling"


@pytest.mark.parametrize("share", [0.0, SHARE, 1.0])
def test_failures_of_both_arms_are_no_evidence(share: float) -> None:
    with rolling(Powers(1.0), share=share) as server:
        users = on(server, "production" if share == 0 else "challenger", 5)
        statuses = {server.ask(HUGE, user=user).status_code for user in users * 12}
        seen = window(server)
        phase = looked(server).phase

    assert statuses == {422}
    assert seen.challenger.not_finite == 60, "it did fail"
    assert seen.evidence_counts is not None
    assert (
        seen.evidence_counts.challenger.not_finite,
        seen.evidence_counts.production.not_finite,
    ) == (0, 0)
    assert phase == "rolling"


def test_shared_faults_do_not_hide_a_faulty_challenger() -> None:
    """Production failing on purpose beside it made a sick challenger look no worse."""
    with rolling(Raises()) as server:
        hidden = on(server, "production", 5)
        for user in hidden * 40:
            server.ask(HUGE, user=user)
        honest(server, 100)
        seen = window(server)
        phase = looked(server).phase

    assert seen.production.not_finite == 200
    assert seen.evidence_counts is not None
    assert seen.evidence_counts.production.not_finite == 0
    assert phase == "rolled_back"


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["user", "address"])
def test_one_client_alone_cannot_end_a_rollout(named: bool) -> None:
    with rolling(Picky(1.0)) as server:
        honest(server, 200)
        (user,) = on(server, "challenger", 1)
        more = {"user": user} if named else {}
        for _ in range(60 if named else 240):
            assert server.ask(TRIGGER, **more).status_code == 200
        seen = window(server)
        phase = looked(server).phase

    assert seen.challenger.errors > 40
    assert seen.evidence_counts is not None
    assert seen.evidence_counts.challenger.errors <= 2
    assert phase == "rolling"


def test_a_challenger_that_fails_for_its_only_client_is_detected() -> None:
    """Where there is only one client, its share is all there is."""
    with rolling(Raises()) as server:
        for _ in range(120):
            server.ask(1.0)

        assert looked(server).phase == "rolled_back"


def test_faults_beyond_the_limit_are_not_repeated_on_the_other_arm() -> None:
    """Production fails on what one client sends; the challenger is asked for the first ones."""
    challenger = Counts(1.0)
    with rolling(challenger, production=Picky(1.0)) as server:
        (user,) = on(server, "production", 1)
        window(server)
        before = challenger.calls
        for _ in range(60):
            assert server.ask(TRIGGER, user=user).status_code == 500
            seen = window(server)

    assert seen.production.errors == 60
    assert seen.evidence_counts is not None
    assert seen.evidence_counts.production.errors == BREACH_FAULTS
    assert challenger.calls == before + BREACH_FAULTS


@pytest.mark.parametrize("arm", ["challenger", "production"])
def test_a_flood_of_good_requests_does_not_change_the_compared_split(arm: str) -> None:
    with rolling(Powers(1.0)) as server:
        honest(server, 100)
        (user,) = on(server, arm, 1)
        for _ in range(400):
            server.ask(1.0, user=user)
        seen = window(server)

    assert seen.evidence_counts is not None
    ours, theirs = (
        seen.evidence_counts.challenger.requests,
        seen.evidence_counts.production.requests,
    )
    told = seen.challenger.requests / (seen.challenger.requests + seen.production.requests)
    assert not 0.12 < told < 0.5, "it did change the split"
    assert 0.12 < ours / (ours + theirs) < 0.5


@pytest.mark.slow
def test_new_users_of_one_address_cannot_end_a_rollout() -> None:
    """Anybody may name as many users as it likes; it has one network, 127.1.0.0/24."""
    with rolling(Picky(1.0)) as server:
        honest(server, 400)
        headers = dict(server.client.headers)
        transport = httpx.HTTPTransport(local_address="127.1.0.2")
        with httpx.Client(base_url=server.url, headers=headers, transport=transport) as other:
            for number in range(60):
                asked = body(TRIGGER, user=f"new {number}")
                assert other.post("/predict", json=asked).status_code == 200
        seen = window(server)
        phase = looked(server).phase

    assert seen.challenger.errors >= 10
    assert seen.evidence_counts is not None
    assert seen.evidence_counts.challenger.errors < seen.challenger.errors
    assert phase == "rolling"
