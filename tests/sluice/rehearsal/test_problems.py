"""ROLL-2: what a rehearsal says of its server afterwards."""

from sluice.rehearsal.run import problems_so_far
from sluice.rollout.samples import ServerState
from sluice.serving.following import LOADING
from tests.sluice.registry.ledger_samples import NOW

GONE = "The weights cannot be read."


def server(*problems: str) -> ServerState:
    return ServerState(
        server="s", model="m", at=NOW, started_at=NOW, epoch=1, production=1, problems=problems
    )


def test_a_load_that_is_over_was_no_problem_and_one_that_goes_on_is() -> None:
    loading = problems_so_far((), [server(LOADING, GONE)])
    assert loading == (LOADING, GONE)
    assert problems_so_far(loading, [server(), server(LOADING)]) == (LOADING, GONE)

    assert problems_so_far(loading, [server(), server()]) == (GONE,)
    assert problems_so_far((GONE,), [server(GONE)]) == (GONE,)
