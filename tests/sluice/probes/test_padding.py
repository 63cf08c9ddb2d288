"""The probe for outputs at real positions that depend on padding (TRACE-4)."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.probes.padding import padding_mask, probe_padding

IDS = torch.randint(1, 20, (4, 6), generator=torch.Generator().manual_seed(0))
for row, length in enumerate((6, 4, 3, 2)):
    IDS[row, length:] = 0


class Tagger(nn.Module):
    """Masks the token 0; the mask is correct, inverted or missing."""

    def __init__(self, mask="correct", pool=None):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.mask, self.pool = mask, pool

    def forward(self, ids):
        is_padding = ids == 0
        # Each row keeps at least one key.
        inverted = torch.cat((torch.zeros_like(is_padding[:, :1]), ~is_padding[:, 1:]), dim=1)
        mask = {"correct": is_padding, "inverted": inverted, "none": None}[self.mask]
        h = self.layer(self.table(ids), src_key_padding_mask=mask)
        if self.pool == "all":
            h = h.mean(dim=1)
        elif self.pool == "real":
            is_real = (~is_padding).unsqueeze(-1)
            h = (h * is_real).sum(dim=1) / is_real.sum(dim=1)
        return self.head(h)


class MaskedSum(nn.Module):
    """Sums floats over the positions that a mask does not exclude."""

    def forward(self, x, padded):
        return (x * ~padded[..., None]).sum(dim=1)


def run_probe(network, x=IDS, *other_inputs):
    return probe_padding(network, x, *other_inputs, padded=IDS == 0, seed=0)


@pytest.mark.parametrize("pool", [None, "real"])
def test_masked_padding_passes(pool):
    result = run_probe(Tagger(pool=pool))

    assert result.outcome == "pass"
    assert result.numbers["padded_positions"] == 9
    assert result.numbers["effect_of_real"] > 0.01


@pytest.mark.parametrize(("mask", "pool"), [("none", None), ("inverted", None), ("correct", "all")])
def test_a_missing_mask_an_inverted_mask_and_a_mean_over_padding_fail(mask, pool):
    result = run_probe(Tagger(mask, pool))

    assert result.outcome == "fail"
    assert "9 of 24 positions are padding and were perturbed" in result.seen
    assert "mask" in result.why
    assert result.fix


def test_a_network_that_receives_its_mask_as_input_is_probed():
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))

    assert run_probe(MaskedSum(), x, IDS == 0).outcome == "pass"
    assert run_probe(MaskedSum(), x, IDS != 0).outcome == "fail"


def test_nonfinite_outputs_are_insufficient_except_in_rows_of_padding():
    network = Tagger()
    ids = torch.cat((IDS, torch.zeros_like(IDS[:1])))  # attention over no position is NaN
    assert probe_padding(network, ids, padded=ids == 0, seed=0).outcome == "pass"

    nn.init.constant_(network.head.bias, torch.nan)
    result = run_probe(network)
    assert (result.outcome, "NaN or infinite" in result.seen) == ("insufficient", True)


def test_padding_is_declared_by_the_pad_id_or_the_embedding():
    network = Tagger()

    assert torch.equal(padding_mask(IDS, network, pad_id=None), IDS == 0)
    assert torch.equal(padding_mask(IDS, network, pad_id=3), IDS == 3)
    assert padding_mask(IDS, nn.Embedding(20, 3), pad_id=None) is None
    assert padding_mask(torch.zeros(2, 3), network, pad_id=0) is None


def test_inputs_that_cannot_be_probed_are_skipped():
    no_padding = torch.zeros(4, 6, dtype=torch.bool)

    assert probe_padding(Tagger(), IDS, padded=no_padding, seed=0).outcome == "skipped"
    assert probe_padding(Tagger(), IDS, padded=~no_padding, seed=0).outcome == "skipped"

    class OneHot(nn.Module):
        def forward(self, ids):
            return nn.functional.one_hot(ids, 20).float()

    assert "No nn.Embedding" in run_probe(OneHot()).seen


def test_a_network_with_constant_outputs_is_insufficient():
    network = Tagger()
    nn.init.zeros_(network.head.weight)

    assert run_probe(network).outcome == "insufficient"


def test_the_probe_leaves_no_hook_and_keeps_the_random_state():
    network = Tagger().train()
    state = torch.get_rng_state()

    run_probe(network)

    assert not network.table._forward_hooks
    assert torch.equal(torch.get_rng_state(), state)


def test_a_mask_of_another_shape_or_type_is_rejected():
    with pytest.raises(ContractError, match=r"shape \(4, 6\), got torch\.bool of shape \(4, 5\)"):
        probe_padding(Tagger(), IDS, padded=IDS[:, 1:] == 0, seed=0)
    with pytest.raises(ContractError, match=r"int64"):
        probe_padding(Tagger(), IDS, padded=IDS, seed=0)
