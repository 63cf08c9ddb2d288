"""The probe for outputs that depend on later positions (TRACE-4)."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.probes.causality import probe_causality

TOKENS = torch.randint(1, 20, (4, 7), generator=torch.Generator().manual_seed(0))


class LanguageModel(nn.Module):
    """A language model whose mask is correct, missing, or allows one later token."""

    def __init__(self, mask="causal"):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 20)
        self.mask = mask

    def forward(self, ids):
        ones = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool)
        mask = {"causal": ones.triu(1), "off by one": ones.triu(2), "none": None}[self.mask]
        return self.head(self.layer(self.table(ids), src_mask=mask))


class SequenceModel(nn.Module):
    """Maps floats (B, L, 3) to one float per position."""

    def __init__(self, *, bidirectional=False):
        super().__init__()
        torch.manual_seed(0)
        self.core = nn.GRU(3, 8, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(16 if bidirectional else 8, 1)

    def forward(self, x):
        return self.head(self.core(x)[0])


def run_probe(network, x=TOKENS, *, causal=True, y=None):
    return probe_causality(network, x, causal=causal, y=y, seed=0)


def test_a_causal_mask_passes_and_later_outputs_change():
    result = run_probe(LanguageModel())

    assert result.outcome == "pass"
    assert result.numbers["effect_on_later"] > 0.01


@pytest.mark.parametrize("mask", ["none", "off by one"])
def test_a_missing_or_off_by_one_mask_fails(mask):
    result = run_probe(LanguageModel(mask))

    assert result.outcome == "fail"
    assert "Outputs before the cut changed for 3 of 3 cuts" in result.seen
    assert "leak" in result.why
    assert "Mask all later positions" in result.fix


def test_causality_is_inferred_from_targets_that_are_the_next_inputs():
    next_tokens = TOKENS.roll(-1, dims=1)

    assert run_probe(LanguageModel("none"), causal=None, y=next_tokens).outcome == "fail"
    assert run_probe(LanguageModel("none"), causal=None, y=TOKENS).outcome == "insufficient"
    assert run_probe(LanguageModel("none"), causal=False).outcome == "skipped"


@pytest.mark.parametrize(("bidirectional", "outcome"), [(False, "pass"), (True, "fail")])
def test_only_a_unidirectional_network_on_a_time_series_passes(bidirectional, outcome):
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))

    assert run_probe(SequenceModel(bidirectional=bidirectional), x).outcome == outcome


@pytest.mark.parametrize(
    ("network", "x", "messages"),
    [
        (nn.Linear(3, 2), torch.randn(4, 3), "shorter input raises|not one output per position"),
        (nn.Conv2d(3, 3, 3, padding=1), torch.randn(4, 3, 5, 5), "shorter input raises"),
        (nn.Linear(3, 3), torch.randn(4, 3), "shorter input raises"),
        (nn.Linear(3, 3), torch.randn(4), "no sequence dimension"),
    ],
)
def test_an_input_without_positions_is_skipped_with_the_reason(network, x, messages):
    result = run_probe(network, x)

    assert result.outcome == "skipped"
    assert any(part in result.seen for part in messages.split("|"))


def test_a_network_with_constant_outputs_is_insufficient():
    network = LanguageModel()
    nn.init.zeros_(network.head.weight)

    assert run_probe(network).outcome == "insufficient"


def test_a_network_with_nonfinite_outputs_is_insufficient():
    network = LanguageModel()
    nn.init.constant_(network.head.bias, torch.nan)

    result = run_probe(network)

    assert result.outcome == "insufficient"
    assert "NaN or infinite" in result.seen


def test_a_leak_that_causes_nonfinite_outputs_is_reported():
    class SquareRoot(nn.Module):
        def forward(self, x):
            return x * (x[:, -1:] - x[:, :1] + 0.5).sqrt()

    result = run_probe(SquareRoot(), torch.tensor([1.0, 2.0])[:, None, None].expand(2, 6, 1))

    assert result.outcome == "fail"
    assert "changed for 3 of 3 cuts, to non-finite values (at cut" in result.seen


def test_the_probe_changes_neither_the_network_nor_the_random_state():
    network = LanguageModel("none").train()
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()

    run_probe(network)

    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weights[name], value) for name, value in network.state_dict().items())
    assert not network.table._forward_hooks


def test_invalid_arguments_are_rejected():
    with pytest.raises(ContractError, match=r"torch\.nn\.Module, got type"):
        run_probe(LanguageModel)
    with pytest.raises(ContractError, match="at least 1 row,"):
        run_probe(LanguageModel(), TOKENS[:0])
    with pytest.raises(ContractError, match="other values of the batch"):
        run_probe(LanguageModel(), torch.ones(2, 5, dtype=torch.int64))
    with pytest.raises(ContractError, match="one tensor of floats from GRU, got tuple"):
        run_probe(nn.GRU(3, 8, batch_first=True), torch.randn(2, 5, 3))
