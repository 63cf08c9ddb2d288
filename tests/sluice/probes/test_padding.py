"""Padding that moves real positions (TRACE-4)."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.probes.padding import padding_mask, probe_padding

IDS = torch.randint(1, 20, (4, 6), generator=torch.Generator().manual_seed(0))
for row, length in enumerate((6, 4, 3, 2)):
    IDS[row, length:] = 0


class Tagger(nn.Module):
    """It finds its padding by the token 0; the mask may be inverted, or missing."""

    def __init__(self, mask="right", pool=None):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.mask, self.pool = mask, pool

    def forward(self, ids):
        pads = ids == 0
        # Each row keeps one key, whatever the mask.
        inverted = torch.cat((torch.zeros_like(pads[:, :1]), ~pads[:, 1:]), dim=1)
        mask = {"right": pads, "inverted": inverted, "none": None}[self.mask]
        h = self.layer(self.table(ids), src_key_padding_mask=mask)
        if self.pool == "all":
            h = h.mean(dim=1)
        elif self.pool == "real":
            real = (~pads).unsqueeze(-1)
            h = (h * real).sum(dim=1) / real.sum(dim=1)
        return self.head(h)


class Masked(nn.Module):
    """Numbers and a mask."""

    def forward(self, x, padded):
        return (x * ~padded[..., None]).sum(dim=1)


def ask(network, x=IDS, *further):
    return probe_padding(network, x, *further, padded=IDS == 0, seed=0)


@pytest.mark.parametrize("pool", [None, "real"])
def test_masked_padding_passes(pool):
    answer = ask(Tagger(pool=pool))

    assert answer.outcome == "pass"
    assert answer.numbers["padded_positions"] == 9
    assert answer.numbers["effect_of_real"] > 0.01


@pytest.mark.parametrize(("mask", "pool"), [("none", None), ("inverted", None), ("right", "all")])
def test_no_mask_an_inverted_one_and_a_mean_over_padding_fail(mask, pool):
    answer = ask(Tagger(mask, pool))

    assert answer.outcome == "fail"
    assert "9 of 24 positions are padding and were perturbed" in answer.seen
    assert "mask" in answer.why
    assert answer.fix


def test_numbers_with_a_mask_of_their_own():
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))

    assert ask(Masked(), x, IDS == 0).outcome == "pass"
    assert ask(Masked(), x, IDS != 0).outcome == "fail"


def test_a_non_finite_network_decides_nothing_but_rows_of_padding_may_be_nan():
    network = Tagger()
    ids = torch.cat((IDS, torch.zeros_like(IDS[:1])))  # attention over no position is NaN
    assert probe_padding(network, ids, padded=ids == 0, seed=0).outcome == "pass"

    nn.init.constant_(network.head.bias, torch.nan)
    answer = ask(network)
    assert (answer.outcome, "NaN or infinite" in answer.seen) == ("insufficient", True)


def test_padding_is_what_somebody_declares():
    network = Tagger()

    assert torch.equal(padding_mask(IDS, network, pad_id=None), IDS == 0)
    assert torch.equal(padding_mask(IDS, network, pad_id=3), IDS == 3)
    assert padding_mask(IDS, nn.Embedding(20, 3), pad_id=None) is None
    assert padding_mask(torch.zeros(2, 3), network, pad_id=0) is None


def test_what_cannot_be_asked_is_skipped():
    none = torch.zeros(4, 6, dtype=torch.bool)

    assert probe_padding(Tagger(), IDS, padded=none, seed=0).outcome == "skipped"
    assert probe_padding(Tagger(), IDS, padded=~none, seed=0).outcome == "skipped"

    class OneHot(nn.Module):
        def forward(self, ids):
            return nn.functional.one_hot(ids, 20).float()

    assert "No nn.Embedding" in ask(OneHot()).seen


def test_a_dead_network_decides_nothing():
    network = Tagger()
    nn.init.zeros_(network.head.weight)

    assert ask(network).outcome == "insufficient"


def test_the_network_keeps_no_hook_and_the_caller_its_state():
    network, state = Tagger().train(), torch.get_rng_state()
    state = torch.get_rng_state()

    ask(network)

    assert not network.table._forward_hooks
    assert torch.equal(torch.get_rng_state(), state)


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ContractError, match=r"each position \(4, 6\), got \(4, 5\)"):
        probe_padding(Tagger(), IDS, padded=IDS[:, 1:] == 0, seed=0)
    with pytest.raises(ContractError, match=r"int64"):
        probe_padding(Tagger(), IDS, padded=IDS, seed=0)
