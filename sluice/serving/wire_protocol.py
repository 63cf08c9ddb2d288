"""Protocol between the server and a challenger's process: plain bytes, never pickles.

Pickles from the process could execute code in the server. The first byte of a frame is its kind.
Arrays follow as their shape and raw numbers, everything else as JSON.

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

PREDICT = b"a"
"""To the process: predict from windows (N, L, D) without interruption."""
PREDICT_INTERRUPTIBLE = b"s"
"""To the process: predict from windows (N, L, D), and pause before each network."""
PAUSED = b"p"
"""From the process: it has paused before a network, and waits for ``CONTINUE``."""
CONTINUE = b"g"
"""To the process: continue after a pause."""
READY = b"r"
"""From the process: the model is loaded; a ``ModelInfo`` follows."""
LOAD_FAILED = b"n"
"""From the process: the model did not load; the reason follows as text."""
OUTPUT = b"o"
"""From the process: the prediction; outputs (M, N, O) follow."""
RAISED = b"e"
"""From the process: a network raised an error; an ``ErrorSite`` follows."""

MAX_BYTES = 2**26
"""Maximum size of a frame that the server accepts from a process [bytes]."""

_ShortText = Annotated[str, StringConstraints(max_length=1000)]


class InvalidFrame(Exception):
    """The bytes are not a valid frame, or not a frame that is expected at this point."""


class LoaderSpec(Record):
    """How a process loads its model."""

    load: str = Field(description="'module:function' of (candidate, **arguments) -> ServedModel.")
    arguments: dict[str, str] = Field(
        repr=False, description="Keyword arguments; may contain a database password."
    )


class LoadRequest(Record):
    """First frame to a process: which model it must load."""

    loader: LoaderSpec
    candidate: str


class ModelInfo(Record):
    """Description of a model that another process has loaded."""

    version: int
    candidate: str
    contract: InputContract
    target: str


class ErrorSite(Record):
    """Type and location of an error, without its message."""

    error: _ShortText
    at: Annotated[tuple[_ShortText, ...], Field(max_length=20)]


def pack(kind: bytes, array: NDArray[Any]) -> bytes:
    """Return a frame with an array."""
    return kind + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape) + array.tobytes()


def unpack(frame: bytes, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    """Return the array of a frame, as a writable copy.

    Raises:
        InvalidFrame: The length of the frame does not match its shape.
    """
    try:
        (ndim,) = struct.unpack_from("<B", frame, 1)
        shape = struct.unpack_from(f"<{ndim}I", frame, 2)
    except struct.error as error:
        raise InvalidFrame(str(error)) from None
    start = 2 + 4 * ndim
    if len(frame) - start != math.prod(shape) * np.dtype(dtype).itemsize:
        raise InvalidFrame(f"{len(frame) - start} bytes for a shape of {shape}")
    return np.frombuffer(frame, dtype, offset=start).reshape(shape).copy()
