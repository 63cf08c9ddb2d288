"""ROLL-2: problems of the server that a rehearsal reports."""

from sluice.rehearsal.run import merge_problems
from sluice.rollout.samples import ServerState
from sluice.serving.split_sync import LOADING_PROBLEM
from tests.sluice.registry.ledger_samples import NOW

GONE = "The traffic split cannot be read."


def server(*problems: str) -> ServerState:
    return ServerState(
        server="s", model="m", at=NOW, started_at=NOW, epoch=1, production=1, problems=problems
    )


def test_a_finished_load_is_no_problem_and_an_unfinished_one_is() -> None:
    loading = merge_problems((), [server(LOADING_PROBLEM, GONE)])
    assert loading == (LOADING_PROBLEM, GONE)
    assert merge_problems(loading, [server(), server(LOADING_PROBLEM)]) == (LOADING_PROBLEM, GONE)

    assert merge_problems(loading, [server(), server()]) == (GONE,)
    assert merge_problems((GONE,), [server(GONE)]) == (GONE,)
