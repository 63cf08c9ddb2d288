"""Decoded inputs are batched by shape and reach another process with identical bits."""

import numpy as np
import pytest

from sluice.serving.model_arrays import can_batch, concatenate, count_elements, element_digests
from sluice.serving.wire_protocol import PREDICT, InvalidFrame, pack, pack_inputs, unpack_inputs

WINDOWS = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
TEXT = {"ids": np.array([[1, 2, 3]]), "mask": np.array([[True, True, False]])}
LONGER = {"ids": np.array([[1, 2, 3, 4]]), "mask": np.ones((1, 4), bool)}
IMAGE = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)


@pytest.mark.parametrize("x", [WINDOWS, TEXT, LONGER, IMAGE, IMAGE.transpose(0, 2, 3, 1)])
def test_unpacked_inputs_equal_the_packed_ones(x):
    unpacked = unpack_inputs(pack_inputs(PREDICT, x))

    np.testing.assert_equal(unpacked, x)
    assert element_digests(unpacked) == element_digests(x)


def test_windows_are_packed_as_a_plain_array_frame():
    assert pack_inputs(PREDICT, WINDOWS) == pack(PREDICT, WINDOWS)


def test_only_inputs_of_equal_shape_and_dtype_are_batched():
    assert can_batch(TEXT, TEXT)
    assert can_batch(WINDOWS, WINDOWS[:1])
    assert not can_batch(TEXT, LONGER)
    assert not can_batch(TEXT, {"ids": TEXT["ids"]})
    assert not can_batch(WINDOWS, IMAGE)
    assert not can_batch(IMAGE, IMAGE.astype(np.int64))
    batch = concatenate([TEXT, TEXT])
    assert count_elements(batch) == 2
    assert batch["mask"].shape == (2, 3)


def test_a_digest_depends_only_on_its_element_and_the_key():
    batch = concatenate([TEXT, {**TEXT, "ids": TEXT["ids"] + 1}])

    first, second = element_digests(batch)

    assert [first] == element_digests(TEXT)
    assert first != second != element_digests(TEXT, key=b"k")[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame[:3],
        lambda frame: frame[:-1],
        lambda frame: frame + b"x",
        lambda frame: frame.replace(b"int64", b"objec"),
        lambda frame: frame[:5] + b"{" + frame[6:],
        lambda frame: b"a" + frame[1:],
    ],
)
def test_frames_that_do_not_fit_their_header_are_refused(change):
    with pytest.raises(InvalidFrame):
        unpack_inputs(change(pack_inputs(PREDICT, TEXT)))
