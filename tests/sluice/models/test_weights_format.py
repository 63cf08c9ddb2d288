"""The format of a weights file is detected from its first bytes."""

import pickle

import pytest
import safetensors.torch
import torch

from sluice.base.errors import IntegrityError
from sluice.models.import_limits import ImportLimits
from sluice.models.weights_format import foreign_format, require_safetensors
from sluice.models.weights_header import read_header


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [None, {"w": [1.0]}, list(range(1000))])
def test_pickle_is_recognized(protocol, value):
    assert foreign_format(pickle.dumps(value, protocol)) == "a Python pickle"


def test_damaged_safetensors_file_is_not_reported_as_a_pickle():
    """With a header of 640 bytes the file starts with the same bytes as a pickle."""
    content = next(
        content
        for length in range(400, 700)
        if (content := safetensors.torch.save({"w": torch.ones(2)}, {"x": "a" * length}))[:2]
        == b"\x80\x02"
    )

    with pytest.raises(IntegrityError, match="is not a safetensors file of weights"):
        require_safetensors(content[:-1], what="Version 1")


@pytest.mark.parametrize(("content", "size"), [(b"", "0 bytes"), (b"abc", "3 bytes")])
def test_file_without_a_complete_length_is_reported(content, size):
    with pytest.raises(ValueError, match=f"it has {size}, too few for a header"):
        read_header(content, ImportLimits())
