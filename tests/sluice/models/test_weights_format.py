"""Formats of weights files are named by their first bytes."""

import pickle

import pytest
import safetensors.torch
import torch

from sluice.base.errors import IntegrityError
from sluice.models.weights_format import foreign_format, require_safetensors


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [None, {"w": [1.0]}, list(range(1000))])
def test_a_pickle_is_recognised(protocol, value):
    assert foreign_format(pickle.dumps(value, protocol)) == "a Python pickle"


def test_a_damaged_safetensors_file_is_not_called_a_pickle():
    """A header of 640 bytes has a length whose first bytes are those of a pickle."""
    content = next(
        content
        for length in range(400, 700)
        if (content := safetensors.torch.save({"w": torch.ones(2)}, {"x": "a" * length}))[:2]
        == b"\x80\x02"
    )

    with pytest.raises(IntegrityError, match="is not a safetensors file of weights"):
        require_safetensors(content[:-1], what="Version 1")
