"""A judge is asked in both orders, at temperature 0, several times per pair (LLM-1)."""

import itertools

import pytest

from sluice.base.errors import ContractError
from sluice.evaluation.llm_judge.pairs import AnswerPair
from sluice.evaluation.llm_judge.pairwise import PairVotes, ask_pair
from tests.sluice.evaluation.llm_judge.judges import answers_in, better_answer, first_answer

PAIR = AnswerPair(prompt="Why {not}?", candidate="a good {one}", baseline="another")


def test_both_orders_are_asked_in_every_repeat_at_temperature_0() -> None:
    calls = []

    def ask(question: str, temperature: float) -> str:
        calls.append((answers_in(question), temperature))
        assert "Why {not}?" in question
        return "[[C]]"

    ask_pair(ask, PAIR, repeats=3)

    first_order, second_order = (
        {"A": "a good {one}", "B": "another"},
        {"A": "another", "B": "a good {one}"},
    )
    assert calls == [(first_order, 0.0)] * 3 + [(second_order, 0.0)] * 3


def test_the_better_answer_wins_in_either_position() -> None:
    votes = ask_pair(better_answer, PAIR, repeats=3)

    assert votes.candidate_first == votes.baseline_first == ("candidate",) * 3
    assert (votes.choice, votes.is_unanimous) == ("candidate", True)


def test_a_judge_with_position_bias_prefers_neither() -> None:
    votes = ask_pair(first_answer, PAIR, repeats=3)

    assert (votes.candidate_first, votes.baseline_first) == (("candidate",) * 3, ("baseline",) * 3)
    assert (votes.choice, votes.is_unanimous) == ("tie", False)


def test_the_last_choice_in_a_reply_counts_and_a_reply_without_one_is_none() -> None:
    replies = itertools.cycle(["At first [[A]], then [[B]].", "A", "[[D]]"])

    votes = ask_pair(lambda *_: next(replies), PAIR, repeats=3)

    assert votes.candidate_first == ("baseline", None, None)
    assert (votes.choice, votes.is_unanimous) == (None, False)


@pytest.mark.parametrize(
    ("first_order", "second_order", "choice"),
    [
        (("candidate", "candidate", "tie"), ("candidate", "candidate", None), "candidate"),
        (("candidate", "candidate", "tie"), ("tie", "tie", "tie"), "tie"),
        (("candidate", "baseline", "tie"), ("candidate",) * 3, "tie"),
        (("baseline",) * 3, (None, None, "baseline"), None),
        ((None,) * 3, (None,) * 3, None),
    ],
)
def test_a_choice_needs_the_majority_of_repeats_in_both_orders(
    first_order, second_order, choice
) -> None:
    votes = PairVotes(candidate_first=first_order, baseline_first=second_order)

    assert votes.choice == choice
    assert not votes.is_unanimous


def test_a_judge_that_returns_no_text_is_rejected() -> None:
    with pytest.raises(ContractError, match="must return a string, got dict"):
        ask_pair(lambda *_: {"content": "[[A]]"}, PAIR, repeats=1)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("error", [RuntimeError("429: too many requests"), SystemExit(0)])
def test_an_error_of_the_judge_is_reported_with_its_line(error: BaseException) -> None:
    def ask(*_: object) -> str:
        raise error

    kind = type(error).__name__
    with pytest.raises(
        ContractError,
        match=rf"The judge raised {kind}.*test_pairwise\.py:\d+ in .*ask",
    ):
        ask_pair(ask, PAIR, repeats=1)
