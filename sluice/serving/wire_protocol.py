"""Protocol between the server and a challenger's process: plain bytes, never pickles.

Pickles from the process could execute code in the server. The first byte of a frame is its kind.
Arrays follow as their shape and raw numbers, everything else as JSON.

Shape legend: M = networks, N = elements of a request, O = outputs.
"""

import json
import math
import struct
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from sluice.base.settings import Record
from sluice.serving.contract import ModelContract, OutputContract
from sluice.serving.model_arrays import ModelArrays

PREDICT = b"a"
"""From the server: predict without pauses; the inputs follow."""
PREDICT_INTERRUPTIBLE = b"s"
"""From the server: predict, and pause before each network; the inputs follow."""
PAUSED = b"p"
"""From the process: the process pauses before a network until it receives ``CONTINUE``."""
CONTINUE = b"g"
"""From the server: end the pause."""
READY = b"r"
"""From the process: the model is loaded; a ``ModelInfo`` follows."""
LOAD_FAILED = b"n"
"""From the process: the model did not load; the reason follows as text."""
OUTPUT = b"o"
"""From the process: the prediction is complete; the outputs (M, N, O) follow."""
RAISED = b"e"
"""From the process: a network raised an error; an ``ErrorSite`` follows."""

MAX_BYTES = 2**26
"""Maximum size of a frame that the server accepts from a process [bytes]."""

_INPUT_DTYPES = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
) | {"bool", "float16", "float32", "float64"}
"""Names of the dtypes that inputs of a prediction may have."""

_ShortText = Annotated[str, StringConstraints(max_length=1000)]


class InvalidFrame(Exception):
    """The bytes are not a valid frame, or not a frame that is expected at this point."""


class LoaderSpec(Record):
    """Function and arguments with which a process loads its model."""

    load: str = Field(
        description="Import path 'module:function' of a function (candidate, **arguments) that "
        "returns a ServedModel."
    )
    arguments: dict[str, str] = Field(
        repr=False,
        description="Keyword arguments of the function; they may contain a database password.",
    )


class LoadRequest(Record):
    """First frame to a process: which model it must load."""

    loader: LoaderSpec = Field(description="How the process loads the model.")
    candidate: str = Field(description="Candidate digest of the model.")


class ModelInfo(Record):
    """Description of a model that another process has loaded."""

    version: int = Field(description="Version number.")
    candidate: str = Field(description="Candidate digest.")
    contract: ModelContract = Field(description="Input contract.")
    target: str = Field(description="Name of the predicted column.")
    output: OutputContract = Field(description="Meaning of the output values.")


class ErrorSite(Record):
    """Type and location of an error, without its message."""

    error: _ShortText = Field(description="Name of the type of the error.")
    at: Annotated[tuple[_ShortText, ...], Field(max_length=20)] = Field(
        description="Stack frames as 'file:line function', the innermost one last."
    )


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
        raise InvalidFrame(f"an array of shape {shape} has {len(frame) - start} bytes")
    return np.frombuffer(frame, dtype, offset=start).reshape(shape).copy()


def pack_inputs(kind: bytes, x: ModelArrays) -> bytes:
    """Return a frame with decoded inputs.

    A single float32 array (windows) is packed by ``pack``. Other inputs have the kind in upper
    case, and a header with the name, dtype and shape of each array.
    """
    if isinstance(x, np.ndarray):
        if x.dtype == np.float32:
            return pack(kind, x)
        arrays = {"": x}
    else:
        arrays = x
    header = json.dumps([[name, array.dtype.name, array.shape] for name, array in arrays.items()])
    content = b"".join(array.tobytes() for array in arrays.values())
    return kind.upper() + struct.pack("<I", len(header)) + header.encode() + content


def unpack_inputs(frame: bytes) -> ModelArrays:
    """Return the inputs of a frame, as writable copies.

    Raises:
        InvalidFrame: The frame does not match its header.
    """
    if frame[:1].islower():
        return unpack(frame, np.float32)
    try:
        (header_bytes,) = struct.unpack_from("<I", frame, 1)
        header = json.loads(frame[5 : 5 + header_bytes])
        arrays: dict[str, NDArray[Any]] = {}
        start = 5 + header_bytes
        for name, dtype, shape in header:
            if dtype not in _INPUT_DTYPES:
                raise InvalidFrame(
                    f"the array {name!r} has the dtype {dtype}, which is not allowed"
                )
            num_values = math.prod(shape)
            array = np.frombuffer(frame, dtype, count=num_values, offset=start)
            arrays[name] = array.reshape(shape).copy()
            start += array.nbytes
    except (struct.error, ValueError, TypeError) as error:
        raise InvalidFrame(str(error)) from None
    if start != len(frame) or not arrays:
        raise InvalidFrame(
            f"the frame has {len(arrays)} arrays and {len(frame) - start} bytes after them"
        )
    return arrays.get("", arrays)
