"""What the server and a challenger's process say to each other: plain bytes, never pickles.

The first byte of a frame says what it is. Arrays travel as their shape and their raw numbers; the
rest is JSON.

Shape legend: M = networks, N = windows, L = rows of a window, D = features, O = outputs.
"""

import math
import struct
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from sluice.base.settings import Record
from sluice.serving.contract import InputContract

ASK = b"a"
"""To the process: windows (N, L, D), to be answered as soon as may be."""
ASK_IN_STEPS = b"s"
"""The same, with a stop before each network."""
STOPPED = b"p"
"""From the process: it stops before a network."""
GO_ON = b"g"
READY = b"r"
"""From the process: it has loaded; a ``Card`` follows."""
NOT_LOADED = b"n"
"""From the process: why it did not load, as text."""
OUTPUT = b"o"
"""From the process: outputs (M, N, O)."""
RAISED = b"e"
"""From the process: the network raised; a ``Place`` follows."""

MAX_BYTES = 2**26
"""Longest frame that the server takes from a process [bytes]."""

_Short = Annotated[str, StringConstraints(max_length=1000)]


class BadFrame(Exception):
    """The bytes are no frame that belongs here."""


class Recipe(Record):
    """How a process gets at its model."""

    load: str = Field(description="'module:function' of (candidate, **arguments) -> Served.")
    arguments: dict[str, str] = Field(repr=False, description="May hold a database's password.")


class Order(Record):
    """First frame to a process."""

    recipe: Recipe
    candidate: str


class Card(Record):
    """What the server must know of a model that it does not hold."""

    version: int
    candidate: str
    contract: InputContract
    target: str


class Place(Record):
    """What a network raised and where, without its message."""

    error: _Short
    at: Annotated[tuple[_Short, ...], Field(max_length=20)]


def pack(kind: bytes, array: NDArray[Any]) -> bytes:
    """Return a frame that holds an array."""
    return kind + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape) + array.tobytes()


def unpack(frame: bytes, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    """Return the array of a frame, as a copy that may be written to.

    Raises:
        BadFrame: Its length is not that of the shape it names.
    """
    try:
        (ndim,) = struct.unpack_from("<B", frame, 1)
        shape = struct.unpack_from(f"<{ndim}I", frame, 2)
    except struct.error as error:
        raise BadFrame(str(error)) from None
    start = 2 + 4 * ndim
    if len(frame) - start != math.prod(shape) * np.dtype(dtype).itemsize:
        raise BadFrame(f"{len(frame) - start} bytes for a shape of {shape}")
    return np.frombuffer(frame, dtype, offset=start).reshape(shape).copy()
