"""Ranks whose weights diverge (TRACE-5)."""

import pytest
import torch
from torch import nn

from sluice.trace.records.environment import RankWeightsRecord
from sluice.trace.rules.distributed.ranks_diverge import RANKS_DIVERGE
from tests.support.traced.small_programs import random_rows, train_step

STEPS = (1, 2, 4, 8)


def train_for_a_step(_):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_step(optimizer, model(random_rows(4)).square().mean())


def weight_records(digests, steps=STEPS, norm=1.0):
    """Return the records of one rank: one letter of ``digests`` for each sampled step."""
    return tuple(
        RankWeightsRecord(step=step, optimizer=0, norm=norm, digest=digest)
        for step, digest in zip(steps, digests, strict=True)
    )


@pytest.fixture
def judge_weights(rank_traces_of):
    """Return a function that returns the findings for the digests of two ranks."""

    def judge(first, second, steps=STEPS, *, is_wrapped=(True, True)):
        traces = rank_traces_of(train_for_a_step)
        records = weight_records(first, steps), weight_records(second, steps, norm=2.5)
        return RANKS_DIVERGE(
            [
                trace.model_copy(
                    update={"rank_weights": r, "wrappers": trace.wrappers if wrapped else ()}
                )
                for trace, r, wrapped in zip(traces, records, is_wrapped, strict=True)
            ]
        )

    return judge


@pytest.mark.parametrize(
    ("second", "severity", "step"),
    [
        ("xxxx", "error", 1),
        ("abxx", "error", 4),
        ("abcx", "confirm", 8),  # ranks may be between two periodic synchronizations
    ],
)
def test_weights_that_differ_until_the_last_sample_are_reported(
    judge_weights, second, severity, step
):
    (found,) = judge_weights("abcd", second)

    assert (found.fault, found.severity, found.step) == (
        "weights diverge across ranks",
        severity,
        step,
    )
    assert found.evidence == {"num_diverged": second.count("x"), "num_sampled": 4}
    assert found.what.endswith("The norms at step 8 are 1, 2.5.")


@pytest.mark.parametrize(("last_step", "severity"), [(3, "error"), (4, "confirm")])
def test_one_difference_is_certain_only_at_the_start_of_the_run(judge_weights, last_step, severity):
    (found,) = judge_weights("ab", "ax", (1, last_step))

    assert (found.severity, found.step) == (severity, last_step)


@pytest.mark.parametrize("second", ["abcd", "xbcd", "xbxd", "xxxd"])
def test_weights_that_are_equal_at_the_last_sample_are_not_reported(judge_weights, second):
    """Ranks that synchronize only periodically are equal at some samples."""
    assert judge_weights("abcd", second) == ()


def test_weights_that_are_equal_between_differences_are_not_reported(judge_weights):
    assert judge_weights("abcd", "xbxx") == ()


@pytest.mark.parametrize("is_wrapped", [(False, False), (True, False)])
def test_ranks_that_do_not_share_gradients_are_not_reported(judge_weights, is_wrapped):
    assert judge_weights("abcd", "xxxx", is_wrapped=is_wrapped) == ()


def test_ranks_without_a_common_sample_are_not_reported(rank_traces_of):
    """Sharded parameters have no record, because no rank has all of them."""
    first, second = rank_traces_of(train_for_a_step)
    traces = [first.model_copy(update={"rank_weights": weight_records("abcd")}), second]

    assert RANKS_DIVERGE(traces) == ()
