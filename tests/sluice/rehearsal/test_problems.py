"""ROLL-2: a rehearsal reports problems of its servers."""

from sluice.rehearsal.run import merge_problems
from sluice.rollout.samples import ServerState
from sluice.serving.split_sync import LOADING_PROBLEM
from tests.sluice.registry.ledger_samples import NOW

UNREADABLE = "The traffic split cannot be read."


def make_state(*problems: str) -> ServerState:
    return ServerState(
        server="s", model="m", at=NOW, started_at=NOW, epoch=1, production=1, problems=problems
    )


def test_loading_is_reported_only_until_it_finishes() -> None:
    loading = merge_problems((), [make_state(LOADING_PROBLEM, UNREADABLE)])
    assert loading == (LOADING_PROBLEM, UNREADABLE)
    assert merge_problems(loading, [make_state(), make_state(LOADING_PROBLEM)]) == (
        LOADING_PROBLEM,
        UNREADABLE,
    )

    assert merge_problems(loading, [make_state(), make_state()]) == (UNREADABLE,)
    assert merge_problems((UNREADABLE,), [make_state(UNREADABLE)]) == (UNREADABLE,)
