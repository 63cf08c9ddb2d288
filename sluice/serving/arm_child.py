"""Process of a challenger: loads one model and answers requests until the server closes the pipe.

If the model's code crashes or ends this process, the server only sees that the pipe has ended.
"""

import faulthandler
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.serving.deployed import ServedModel

_LOADING_NICENESS = 10
"""Niceness of the thread that loads the model. Loading imports for seconds, and must not delay
production's requests."""


def serve(pipe_fd: int, *, crash_fd: int) -> None:
    """Answer requests until the pipe ends; entry point of the process.

    Args:
        pipe_fd: File descriptor of the pipe.
        crash_fd: File descriptor that faulthandler writes a crash to.
    """
    faulthandler.enable(file=crash_fd)
    _limit_process()
    pipe: Connection[bytes, bytes] = Connection(pipe_fd)
    with suppress(EOFError, OSError):  # the server has ended or closed the pipe
        model = _load_in_thread(pipe)
        while model is not None:
            pipe.send_bytes(_respond(pipe, model, pipe.recv_bytes()))
    # Kill the process group, which includes processes that the model's code started. SIGKILL is
    # needed, because user code may block an orderly exit.
    os.killpg(0, signal.SIGKILL)


def _limit_process() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # If the memory runs out before the server ends this process, the out-of-memory killer
        # must choose this process and not the server.
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")


def _load_in_thread(pipe: "Connection[bytes, bytes]") -> "ServedModel | None":
    """Load the model in a thread of low priority, and report the result to the server.

    Returns the model; None if it does not load.
    """
    loaded_models: list[ServedModel] = []
    load_errors: list[BaseException] = []

    def load() -> None:
        # On other systems, niceness applies to the whole process and cannot be undone.
        if sys.platform == "linux":
            os.nice(_LOADING_NICENESS)
        try:
            loaded_models.append(_load(pipe.recv_bytes()))
        # User code may raise anything, and nothing above this thread would catch it.
        except BaseException as error:
            load_errors.append(error)

    thread = threading.Thread(target=load, name="loading")
    thread.start()
    thread.join()
    from sluice.base.errors import SluiceError
    from sluice.serving import wire_protocol

    for error in load_errors:
        text = str(error) if isinstance(error, SluiceError) else repr(error)
        pipe.send_bytes(wire_protocol.LOAD_FAILED + text[:2000].encode())
        return None
    (model,) = loaded_models
    _warm_up(pipe, model)
    info = wire_protocol.ModelInfo(
        version=model.version,
        candidate=model.candidate,
        contract=model.contract,
        target=model.target,
        output=model.output,
    )
    pipe.send_bytes(wire_protocol.READY + info.model_dump_json().encode())
    return model


def _load(request: bytes) -> "ServedModel":
    from sluice.base.imports import import_object
    from sluice.serving.wire_protocol import LoadRequest

    load_request = LoadRequest.model_validate_json(request)
    load = import_object(load_request.loader.load, what="loader of a challenger")
    model: ServedModel = load(load_request.candidate, **load_request.loader.arguments)
    return model


def _warm_up(pipe: "Connection[bytes, bytes]", model: "ServedModel") -> None:
    """Predict once, because the first prediction of a process takes 200 to 900 ms.

    Without this call, the first request of a user and the requests queued behind it would be slow.
    The guards would count this delay against a healthy challenger. The call uses the same thread
    and code path as real requests. Its result is ignored: the guards count real requests.
    """
    from sluice.serving import wire_protocol
    from sluice.serving.warm_up import warm_up_inputs

    x = warm_up_inputs(model.contract, model.codec)
    _respond(pipe, model, wire_protocol.pack_inputs(wire_protocol.PREDICT, x))


def _respond(pipe: "Connection[bytes, bytes]", model: "ServedModel", frame: bytes) -> bytes:
    import numpy as np

    from sluice.serving import wire_protocol
    from sluice.serving.log import error_site

    def pause() -> None:
        pipe.send_bytes(wire_protocol.PAUSED)
        pipe.recv_bytes()

    x = wire_protocol.unpack_inputs(frame)
    # The kind of a frame is in upper case if its inputs are not windows; see pack_inputs.
    is_interruptible = frame[:1].lower() == wire_protocol.PREDICT_INTERRUPTIBLE
    try:
        output = model.predict(x, pause if is_interruptible else None)
    except Exception as error:  # user code may raise anything, which would end the process
        error_location = error_site(error)
        site = wire_protocol.ErrorSite(
            error=error_location["error"][:1000],
            at=tuple(stack_frame[:1000] for stack_frame in error_location["at"]),
        )
        return wire_protocol.RAISED + site.model_dump_json().encode()
    return wire_protocol.pack(wire_protocol.OUTPUT, np.ascontiguousarray(output, np.float64))
