"""REG-3: weights are safetensors with reproducible bytes and are checked against the network."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, IntegrityError
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.members import Member
from sluice.training.weights import load_member, pack_model, pack_tensors, unpack_tensors
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from tests.support.synthetic import SineWorkload

SETTINGS = ModelSettings(hidden=4, dropout=0.5)
X = torch.randn(20, 5, 2, generator=torch.Generator().manual_seed(1))
ROWS = Examples(x=X, y=7 + X[:, -1, :1], rows=np.arange(20))


def store_member(content: bytes, store: ArtifactStore) -> Member:
    return Member(
        seed=3,
        fold_id=1,
        weights=store.put(content),
        event_log="",
        best_epoch=1,
        epochs_run=1,
        train_loss=0,
        val_loss=0,
        test_metrics={},
        trained_through="",
        seconds=0,
    )


@pytest.fixture
def model() -> Scaled:
    return prepare_model(SineWorkload(), SETTINGS, ROWS, seed=1)


def test_loaded_member_predicts_the_same_bits_and_draws_no_random_number(tmp_path, model):
    store = ArtifactStore(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    loaded = load_member(store_member(pack_model(model), store), SineWorkload(), SETTINGS, store)

    assert torch.equal(loaded(X), model.eval()(X))
    assert torch.equal(torch.rand(1), expected)
    assert not loaded.training


def test_weights_are_a_plain_safetensors_file(model):
    tensors = safetensors.torch.load(pack_model(model))

    assert torch.equal(tensors["x_mean"], model.x_mean)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        (ModelSettings(hidden=5), r"network.head.weight is \(1, 5\) .* and \(1, 4\) in the file"),
        (ModelSettings(hidden=4, architecture="linear"), "network.core.* is absent in the network"),
    ],
)
def test_weights_of_another_network_are_rejected(tmp_path, model, settings, cause):
    store = ArtifactStore(tmp_path)
    member = store_member(pack_model(model), store)

    with pytest.raises(ContractError, match=cause):
        load_member(member, SineWorkload(), settings, store)


def test_damaged_weights_are_rejected(tmp_path, model):
    store = ArtifactStore(tmp_path)
    member = store_member(pack_model(model), store)
    store.path(member.weights).write_bytes(b"damaged")

    with pytest.raises(IntegrityError, match="does not match its name"):
        load_member(member, SineWorkload(), SETTINGS, store)


@pytest.mark.parametrize("content", [b"", b"\x80\x04", safetensors.torch.save({"a": X})])
def test_content_in_another_format_is_rejected(content):
    with pytest.raises(ContractError, match="The file must be a safetensors file"):
        unpack_tensors(content, where="The file")


def test_unpacked_tensors_and_facts_equal_the_packed_ones():
    tied = nn.Parameter(torch.arange(4.0))
    tensors, facts = unpack_tensors(
        pack_tensors({"a": tied, "b": tied[1:3]}, {"n": [1, 0.1]}), where="it"
    )

    assert tensors["b"].tolist() == [1, 2]
    assert facts == {"n": [1, 0.1]}


PACK = """
import hashlib, torch
from sluice.training.weights import pack_tensors
facts = {name: 1 for name in "abcdefgh"}
print(hashlib.sha256(pack_tensors({n: torch.ones(2) for n in "xyzuvw"}, facts)).hexdigest())
"""


@pytest.mark.slow
def test_packed_bytes_are_the_same_in_another_process():
    facts = dict.fromkeys("hgfedcba", 1)
    here = hashlib.sha256(pack_tensors({n: torch.ones(2) for n in "wvuzyx"}, facts)).hexdigest()
    there = subprocess.run(
        [sys.executable, "-c", PACK],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )

    assert there.stdout.strip() == here
