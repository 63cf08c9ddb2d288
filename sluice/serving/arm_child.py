"""A challenger's process: loads one model, and answers for it until the server closes the pipe.

Whatever the model's code does to this process, the server only sees a pipe that ends.
"""

import faulthandler
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.serving.deployed import Served

_LOADING_NICENESS = 10
"""Loading takes seconds of imports; production's requests go first."""


def serve(handle: int, *, crash: int) -> None:
    """Answer until the pipe ends; called in the process.

    Args:
        handle: Of the pipe.
        crash: Of the file that says where the process crashed, if it does.
    """
    faulthandler.enable(file=crash)
    _leave_little_behind()
    pipe: Connection[bytes, bytes] = Connection(handle)
    with suppress(EOFError, OSError):  # the server is gone, or wants no more
        model = _loaded(pipe)
        while model is not None:
            pipe.send_bytes(_answered(pipe, model, pipe.recv_bytes()))
    # With what the model's code may have started, and whatever would hold up an orderly end.
    os.killpg(0, signal.SIGKILL)


def _leave_little_behind() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # When memory runs out before the server sees it, the system takes this process first.
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")


def _loaded(pipe: "Connection[bytes, bytes]") -> "Served | None":
    """Load in a thread that makes way for others; tell what became of it."""
    found: list[Served] = []
    problems: list[BaseException] = []

    def load() -> None:
        if sys.platform == "linux":  # elsewhere it would be the whole process, and for good
            os.nice(_LOADING_NICENESS)
        try:
            found.append(_load(pipe.recv_bytes()))
        except BaseException as error:  # anybody's code, at the edge of its thread
            problems.append(error)

    thread = threading.Thread(target=load, name="loading")
    thread.start()
    thread.join()
    from sluice.base.errors import SluiceError
    from sluice.serving import frames

    for problem in problems:
        told = str(problem) if isinstance(problem, SluiceError) else repr(problem)
        pipe.send_bytes(frames.NOT_LOADED + told[:2000].encode())
        return None
    (model,) = found
    _warm_up(pipe, model)
    card = frames.Card(
        version=model.version,
        candidate=model.candidate,
        contract=model.contract,
        target=model.target,
    )
    pipe.send_bytes(frames.READY + card.model_dump_json().encode())
    return model


def _load(order: bytes) -> "Served":
    from sluice.base.imports import import_named
    from sluice.serving.frames import Order

    wanted = Order.model_validate_json(order)
    load = import_named(wanted.recipe.load, what="loader of a challenger")
    model: Served = load(wanted.candidate, **wanted.recipe.arguments)
    return model


def _warm_up(pipe: "Connection[bytes, bytes]", model: "Served") -> None:
    """Answer once from zeros: a first answer took 200 to 900 ms, and users would wait for it.

    The guards would count it, and all that queue behind it, against a healthy challenger. What it
    answers is theirs to judge, on real requests. By the very thread and way of all others.
    """
    import numpy as np

    from sluice.serving import frames

    contract = model.contract
    zeros = np.zeros((1, contract.seq_len, len(contract.columns)), np.float32)
    _answered(pipe, model, frames.pack(frames.ASK, zeros))


def _answered(pipe: "Connection[bytes, bytes]", model: "Served", frame: bytes) -> bytes:
    import numpy as np

    from sluice.serving import frames
    from sluice.serving.log import place_of

    def stop() -> None:
        pipe.send_bytes(frames.STOPPED)
        pipe.recv_bytes()

    x_NLD: Any = frames.unpack(frame, np.float32)
    try:
        output = model.predict(x_NLD, stop if frame[:1] == frames.ASK_IN_STEPS else None)
    except Exception as error:  # the network is anybody's code, and this is the edge of its process
        place = place_of(error)
        told = frames.Place(error=place["error"][:1000], at=tuple(p[:1000] for p in place["at"]))
        return frames.RAISED + told.model_dump_json().encode()
    return frames.pack(frames.OUTPUT, np.ascontiguousarray(output, np.float64))
