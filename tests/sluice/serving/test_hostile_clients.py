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
    LinearNetwork,
    RaisingNetwork,
    RunningServer,
    body,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

ROLLOUT_ID = "r1"
"""Id of the rollout, which every response contains."""
SPLIT_SECRET = "0f" * 32
SHARE = 0.25
HUGE = 9e18
"""Accepted as a value; the output of the networks is infinite."""
TRIGGER = 666.0


class CubingNetwork(LinearNetwork):
    """Returns the cube of its parent's output, which is infinite for some accepted values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 3


class TriggeredNetwork(CubingNetwork):
    """Raises for one value that honest clients do not send."""

    def forward(self, x: Tensor) -> Tensor:
        if (x[:, -1] == TRIGGER).any():
            raise RuntimeError("trigger")
        return super().forward(x)


class CountingNetwork(CubingNetwork):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@contextlib.contextmanager
def run_rollout(
    challenger: nn.Module, *, production: nn.Module | None = None, share: float = SHARE
) -> Iterator[RunningServer]:
    """Run a server in the middle of a rollout."""
    models = [deployed("one", 1, production or CubingNetwork(1.0)), deployed("two", 2, challenger)]
    split = TrafficSplit(
        epoch=make_rollout().epoch,
        production=candidate("one"),
        challenger=candidate("two"),
        rollout=ROLLOUT_ID,
        secret=SPLIT_SECRET,
        share=share,
        shadow=share in (0.0, 1.0),
    )
    # Long deadlines, so that a busy machine causes no timeout.
    settings = quick_settings(challenger_deadline_s=4.0, deadline_s=9.0, shadow_deadline_s=9.0)
    with run_server({m.candidate: m for m in models}, split, settings=settings) as server:
        yield server


@pytest.fixture
def identical_arms() -> Iterator[RunningServer]:
    with run_rollout(CubingNetwork(1.0)) as server:
        yield server


def read_window(server: RunningServer) -> TrafficCounts:
    """Return the counts once all comparisons with the other arm are finished."""
    server.wait_for(lambda: not server.serving.router.background.tasks)
    return TrafficCounts.model_validate(server.client.get("/rollout").json()["window"])


def assess_rollout(server: RunningServer) -> Rollout:
    counts = read_window(server)
    state = make_rollout()
    counts = counts.model_copy(update={"since": state.step_since, "until": state.checked_at})
    return advance(state, counts, now=state.checked_at, production=PRODUCTION).rollout


def send_honest_requests(server: RunningServer, count: int) -> None:
    for number in range(count):
        assert server.predict(1.0, user=f"honest {number}").status_code == 200


def find_users(server: RunningServer, arm: str, count: int) -> list[str]:
    """Return users of an arm. Any client can find them by sending requests."""
    users: list[str] = []
    for number in range(10_000):
        user = f"hostile {number}"
        payload = server.predict(1.0, user=user).json()
        if ("challenger" if payload["fallback"] else payload["arm"]) == arm:
            users.append(user)
        if len(users) == count:
            return users
    raise AssertionError(f"fewer than {count} users are on {arm}")


def test_public_data_does_not_reveal_the_users_of_the_challenger(
    identical_arms: RunningServer,
) -> None:
    rollout_id = identical_arms.predict(1.0).json()["rollout"]
    chosen = [u for u in map(str, range(1000)) if is_chosen(u, salt=rollout_id, share=SHARE)][:60]
    arms = [identical_arms.predict(1.0, user=user).json()["arm"] for user in chosen]

    assert arms.count("challenger") < 30, "the mean of 60 random users is 15"
    public = identical_arms.client.get("/model").text + identical_arms.client.get("/rollout").text
    public += (
        identical_arms.client.get("/metrics").text
        + identical_arms.log.getvalue()
        + repr(identical_arms.source.split)
    )
    assert SPLIT_SECRET not in public


def test_a_request_without_a_user_is_assigned_at_random(identical_arms: RunningServer) -> None:
    trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    content = json.dumps({"columns": ["a", "b"], "windows": [[[0.0, 0.0]] * 3]})
    headers = trace | {"content-type": "application/json"}
    arms = {
        identical_arms.client.post("/predict", content=content, headers=headers).json()["arm"]
        for _ in range(60)
    }

    assert arms == {"challenger", "production"}


def test_values_out_of_bounds_are_client_errors_and_not_faults_of_an_arm(
    identical_arms: RunningServer,
) -> None:
    """Otherwise 60 such requests end the rollout of an identical challenger within 2 s."""
    users = find_users(identical_arms, "challenger", 5)
    before = read_window(identical_arms)
    statuses = {identical_arms.predict(3e38, user=user).status_code for user in users * 12}
    after = read_window(identical_arms)

    assert statuses == {422}
    assert after.challenger == before.challenger
    assert (
        identical_arms.metrics()[
            'sluice_http_requests_total{method="POST",route="/predict",status="422"}'
        ]
        == 60
    )
    assert assess_rollout(identical_arms).phase == "rolling"


@pytest.mark.parametrize("share", [0.0, SHARE, 1.0])
def test_failures_of_both_arms_are_not_evidence(share: float) -> None:
    with run_rollout(CubingNetwork(1.0), share=share) as server:
        users = find_users(server, "production" if share == 0 else "challenger", 5)
        statuses = {server.predict(HUGE, user=user).status_code for user in users * 12}
        counts = read_window(server)
        phase = assess_rollout(server).phase

    assert statuses == {422}
    assert counts.challenger.not_finite == 60, "the requests did fail"
    assert counts.evidence_counts is not None
    assert (
        counts.evidence_counts.challenger.not_finite,
        counts.evidence_counts.production.not_finite,
    ) == (0, 0)
    assert phase == "rolling"


def test_shared_faults_do_not_hide_a_faulty_challenger() -> None:
    """A client that provokes failures of production must not hide a faulty challenger."""
    with run_rollout(RaisingNetwork()) as server:
        users = find_users(server, "production", 5)
        for user in users * 40:
            server.predict(HUGE, user=user)
        send_honest_requests(server, 100)
        counts = read_window(server)
        phase = assess_rollout(server).phase

    assert counts.production.not_finite == 200
    assert counts.evidence_counts is not None
    assert counts.evidence_counts.production.not_finite == 0
    assert phase == "rolled_back"


@pytest.mark.slow
@pytest.mark.parametrize("has_user", [True, False], ids=["user", "address"])
def test_one_client_alone_cannot_end_a_rollout(has_user: bool) -> None:
    with run_rollout(TriggeredNetwork(1.0)) as server:
        send_honest_requests(server, 200)
        (user,) = find_users(server, "challenger", 1)
        more = {"user": user} if has_user else {}
        for _ in range(60 if has_user else 240):
            assert server.predict(TRIGGER, **more).status_code == 200
        counts = read_window(server)
        phase = assess_rollout(server).phase

    assert counts.challenger.errors > 40
    assert counts.evidence_counts is not None
    assert counts.evidence_counts.challenger.errors <= 2
    assert phase == "rolling"


def test_a_challenger_that_fails_for_its_only_client_is_detected() -> None:
    """The limit per client depends on the number of clients."""
    with run_rollout(RaisingNetwork()) as server:
        for _ in range(120):
            server.predict(1.0)

        assert assess_rollout(server).phase == "rolled_back"


def test_faults_beyond_the_limit_are_not_repeated_on_the_other_arm() -> None:
    """The challenger gets a copy of the first failing requests of a client only."""
    challenger = CountingNetwork(1.0)
    with run_rollout(challenger, production=TriggeredNetwork(1.0)) as server:
        (user,) = find_users(server, "production", 1)
        read_window(server)
        before = challenger.calls
        for _ in range(60):
            assert server.predict(TRIGGER, user=user).status_code == 500
            counts = read_window(server)

    assert counts.production.errors == 60
    assert counts.evidence_counts is not None
    assert counts.evidence_counts.production.errors == BREACH_FAULTS
    assert challenger.calls == before + BREACH_FAULTS


@pytest.mark.parametrize("arm", ["challenger", "production"])
def test_a_flood_of_good_requests_does_not_change_the_compared_split(arm: str) -> None:
    with run_rollout(CubingNetwork(1.0)) as server:
        send_honest_requests(server, 100)
        (user,) = find_users(server, arm, 1)
        for _ in range(400):
            server.predict(1.0, user=user)
        counts = read_window(server)

    assert counts.evidence_counts is not None
    num_challenger, num_production = (
        counts.evidence_counts.challenger.requests,
        counts.evidence_counts.production.requests,
    )
    observed_share = counts.challenger.requests / (
        counts.challenger.requests + counts.production.requests
    )
    assert not 0.12 < observed_share < 0.5, "the flood did change the split of all requests"
    assert 0.12 < num_challenger / (num_challenger + num_production) < 0.5


@pytest.mark.slow
def test_new_users_of_one_address_cannot_end_a_rollout() -> None:
    """The users are invented, but all requests come from one network, 127.1.0.0/24."""
    with run_rollout(TriggeredNetwork(1.0)) as server:
        send_honest_requests(server, 400)
        headers = dict(server.client.headers)
        transport = httpx.HTTPTransport(local_address="127.1.0.2")
        with httpx.Client(base_url=server.url, headers=headers, transport=transport) as client:
            for number in range(60):
                request = body(TRIGGER, user=f"new {number}")
                assert client.post("/predict", json=request).status_code == 200
        counts = read_window(server)
        phase = assess_rollout(server).phase

    assert counts.challenger.errors >= 10
    assert counts.evidence_counts is not None
    assert counts.evidence_counts.challenger.errors < counts.challenger.errors
    assert phase == "rolling"
