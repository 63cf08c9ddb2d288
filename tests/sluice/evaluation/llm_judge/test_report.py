"""A judge is trusted only if it agrees with itself and with people (LLM-1)."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy.stats import binomtest

from sluice.base.errors import ContractError
from sluice.evaluation.llm_judge.report import judge_pairs
from sluice.evaluation.llm_judge.settings import JudgeSettings
from tests.sluice.evaluation.llm_judge.judges import better_answer, first_answer, make_pairs

SETTINGS = JudgeSettings()


def test_a_judge_that_agrees_with_people_is_trusted() -> None:
    report = judge_pairs(better_answer, make_pairs(90), SETTINGS)

    assert report.trust == "trusted"
    assert (report.candidate_wins, report.baseline_wins, report.ties) == (30, 30, 30)
    assert (report.self_agreement.count, report.order_agreement.count) == (90, 90)
    assert (report.human_agreement.count, report.human_agreement.of) == (90, 90)
    assert report.first_place_share == 0.5
    assert (report.num_answers, report.unparsed_answers) == (540, 0)
    assert (report.p_value, report.preferred) == (1.0, "tie")


def test_a_judge_with_position_bias_is_not_trusted_and_has_no_preference() -> None:
    report = judge_pairs(first_answer, make_pairs(90), SETTINGS)

    assert report.trust == "not trusted"
    assert report.first_place_share == 1.0
    assert report.order_agreement.count == 0
    assert "agrees with itself on 0 of 90" in report.reason
    assert report.preferred is None


def test_a_judge_that_disagrees_with_people_is_not_trusted() -> None:
    """An agreement of 73 % is not significantly above 70 %."""
    pairs = make_pairs(90, num_wrong=24)

    report = judge_pairs(better_answer, pairs, SETTINGS)

    assert report.human_agreement.count == 66
    assert report.human_agreement.lower < 0.7
    assert report.trust == "not trusted"
    assert "agrees with people on" in report.reason
    lenient = JudgeSettings(min_human_agreement=0.6)
    assert judge_pairs(better_answer, pairs, lenient).trust == "trusted"


def test_a_judge_that_always_chooses_the_most_frequent_label_is_not_trusted() -> None:
    """The judge chooses the candidate in all pairs, which 90 % of the labels confirm."""
    pairs = [
        dataclasses.replace(pair, candidate="good", baseline="bad", human=human)
        for pair, human in zip(make_pairs(100), ["candidate"] * 90 + ["baseline"] * 10, strict=True)
    ]

    report = judge_pairs(better_answer, pairs, SETTINGS)

    assert report.human_agreement.rate == report.required_human_agreement == 0.9
    assert report.trust == "not trusted"


def test_too_few_labels_are_insufficient() -> None:
    partly_labelled = [
        dataclasses.replace(pair, human=pair.human if index < 49 else None)
        for index, pair in enumerate(make_pairs(90))
    ]

    report = judge_pairs(better_answer, partly_labelled, SETTINGS)

    assert report.trust == "insufficient"
    assert report.human_agreement.of == 49
    assert "required 50" in report.reason
    assert report.preferred is None


def test_the_arm_with_significantly_more_wins_is_preferred() -> None:
    pairs = [
        dataclasses.replace(pair, candidate="good", baseline="bad", human="candidate")
        if pair.human == "tie"
        else pair
        for pair in make_pairs(150)
    ]

    report = judge_pairs(better_answer, pairs, SETTINGS)

    assert (report.candidate_wins, report.baseline_wins) == (100, 50)
    assert report.p_value == pytest.approx(binomtest(100, 150).pvalue)
    assert (report.trust, report.preferred) == ("trusted", "candidate")


def test_unparsed_answers_are_counted_and_agree_with_no_choice() -> None:
    report = judge_pairs(lambda *_: "I cannot say.", make_pairs(60), SETTINGS)

    assert (report.undecided, report.unparsed_answers) == (60, 360)
    assert report.self_agreement.count == report.human_agreement.count == 0
    assert report.order_agreement.count == 0
    assert report.first_place_share is None
    assert report.trust == "not trusted"


@pytest.mark.parametrize("of", [50, 200])
def test_the_lower_bound_of_the_agreement_is_one_sided_and_exact(of: int) -> None:
    report = judge_pairs(better_answer, make_pairs(of, num_wrong=of // 10), SETTINGS)
    agreement = report.human_agreement

    expected = binomtest(agreement.count, of, alternative="greater").proportion_ci(0.95)
    assert agreement.lower == pytest.approx(expected.low)


def test_a_judge_at_the_required_agreement_is_trusted_in_at_most_5_percent_of_cases() -> None:
    """The judge's true agreement with people is exactly the required share."""
    settings = JudgeSettings(repeats=1, min_human_agreement=0.7)
    rng = np.random.default_rng(0)
    trusted = 0
    for _ in range(200):
        right = rng.random(60) < 0.7
        pairs = [
            dataclasses.replace(pair, human=pair.human if hit else others)
            for pair, hit, others in zip(
                make_pairs(60), right, itertools.cycle(["baseline", "tie", "candidate"])
            )
        ]
        trusted += judge_pairs(better_answer, pairs, settings).trust == "trusted"

    assert trusted <= 18  # 99 % binomial band above 5 % of 200


def test_progress_is_reported_and_empty_pairs_are_rejected() -> None:
    progress: list[int] = []

    judge_pairs(better_answer, make_pairs(3), SETTINGS, on_pair=progress.append)

    assert progress == [1, 2, 3]
    with pytest.raises(ContractError, match="at least one pair, got none"):
        judge_pairs(better_answer, [], SETTINGS)
