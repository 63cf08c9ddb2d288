"""Outputs that see what comes after them (TRACE-4)."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.probes.causality import probe_causality

TOKENS = torch.randint(1, 20, (4, 7), generator=torch.Generator().manual_seed(0))


class Speaker(nn.Module):
    """A language model; its mask may be missing, or let one later token through."""

    def __init__(self, mask="causal"):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 20)
        self.mask = mask

    def forward(self, ids):
        late = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool)
        mask = {"causal": late.triu(1), "off by one": late.triu(2), "none": None}[self.mask]
        return self.head(self.layer(self.table(ids), src_mask=mask))


class Reader(nn.Module):
    """Numbers (B, L, 3) to one number per position."""

    def __init__(self, *, both_ways=False):
        super().__init__()
        torch.manual_seed(0)
        self.core = nn.GRU(3, 8, batch_first=True, bidirectional=both_ways)
        self.head = nn.Linear(16 if both_ways else 8, 1)

    def forward(self, x):
        return self.head(self.core(x)[0])


def ask(network, x=TOKENS, *, causal=True, y=None):
    return probe_causality(network, x, causal=causal, y=y, seed=0)


def test_a_causal_mask_passes_and_later_outputs_did_move():
    answer = ask(Speaker())

    assert answer.outcome == "pass"
    assert answer.numbers["effect_on_later"] > 0.01


@pytest.mark.parametrize("mask", ["none", "off by one"])
def test_a_missing_mask_and_one_that_is_off_by_one_fail(mask):
    answer = ask(Speaker(mask))

    assert answer.outcome == "fail"
    assert "outputs at earlier positions changed at 3 of 3 cuts" in answer.seen
    assert "leak" in answer.why
    assert "Mask all later positions" in answer.fix


def test_the_targets_tell_that_later_inputs_are_predicted():
    next_tokens = TOKENS.roll(-1, dims=1)

    assert ask(Speaker("none"), causal=None, y=next_tokens).outcome == "fail"
    assert ask(Speaker("none"), causal=None, y=TOKENS).outcome == "insufficient"
    assert ask(Speaker("none"), causal=False).outcome == "skipped"


@pytest.mark.parametrize(("both_ways", "outcome"), [(False, "pass"), (True, "fail")])
def test_time_steps_of_numbers(both_ways, outcome):
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))

    assert ask(Reader(both_ways=both_ways), x).outcome == outcome


@pytest.mark.parametrize(
    ("network", "x", "reason"),
    [
        (nn.Linear(3, 2), torch.randn(4, 3), "shorter input raises|not one output per position"),
        (nn.Conv2d(3, 3, 3, padding=1), torch.randn(4, 3, 5, 5), "shorter input raises"),
        (nn.Linear(3, 3), torch.randn(4, 3), "shorter input raises"),
        (nn.Linear(3, 3), torch.randn(4), "no sequence dimension"),
    ],
)
def test_what_has_no_positions_is_skipped_with_the_reason(network, x, reason):
    answer = ask(network, x)

    assert answer.outcome == "skipped"
    assert any(part in answer.seen for part in reason.split("|"))


def test_a_dead_network_decides_nothing():
    network = Speaker()
    nn.init.zeros_(network.head.weight)

    assert ask(network).outcome == "insufficient"


def test_a_non_finite_network_decides_nothing():
    network = Speaker()
    nn.init.constant_(network.head.bias, torch.nan)

    assert "NaN or infinite" in ask(network).seen


def test_a_leak_of_non_finite_values_is_named():
    class Root(nn.Module):
        def forward(self, x):
            return x * (x[:, -1:] - x[:, :1] + 0.5).sqrt()

    answer = ask(Root(), torch.tensor([1.0, 2.0])[:, None, None].expand(2, 6, 1))

    assert answer.outcome == "fail"
    assert "changed at 3 of 3 cuts, to non-finite values (cut at position" in answer.seen


def test_nothing_of_the_network_or_of_the_caller_is_moved():
    network = Speaker("none").train()
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()

    ask(network)

    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weights[name], value) for name, value in network.state_dict().items())
    assert not network.table._forward_hooks


def test_bad_input_is_refused():
    with pytest.raises(ContractError, match=r"torch\.nn\.Module, got type"):
        ask(Speaker)
    with pytest.raises(ContractError, match="at least 1 row,"):
        ask(Speaker(), TOKENS[:0])
    with pytest.raises(ContractError, match="other values of the batch"):
        ask(Speaker(), torch.ones(2, 5, dtype=torch.int64))
    with pytest.raises(ContractError, match="one tensor of floats from GRU, got tuple"):
        ask(nn.GRU(3, 8, batch_first=True), torch.randn(2, 5, 3))
