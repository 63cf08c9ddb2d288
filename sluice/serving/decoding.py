"""Decodes the requests of codecs in threads, so that they do not block the event loop.

Windows of numbers are decoded in the event loop, which is faster than switching to a thread.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from sluice.base.errors import PayloadError
from sluice.serving.http_errors import InvalidInput, ModelFailed, PredictionTimeout
from sluice.serving.log import error_site
from sluice.serving.model_arrays import ModelArrays, as_arrays
from sluice.workloads.codecs.codec import Codec
from sluice.workloads.codecs.request import CodecRequest

_NUM_THREADS = 2
"""Number of threads that decode requests."""


class RequestDecoder:
    """Threads that decode requests; they start with the first request."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(
            _NUM_THREADS,
            thread_name_prefix="decode",
            # OpenMP stores its number of threads per thread, so each thread must set it.
            initializer=torch.set_num_threads,
            initargs=(1,),
        )

    async def decode(self, codec: Codec, request: CodecRequest, *, deadline: float) -> ModelArrays:
        """Return the decoded elements of a request.

        Args:
            codec: Codec of production.
            request: Request of the codec's ``request_type``.
            deadline: Latest time of the response [s, monotonic].

        Raises:
            InvalidInput: The elements do not fit the codec.
            PredictionTimeout: The elements were not decoded before the deadline.
            ModelFailed: The codec raised an error of another kind.
        """
        loop = asyncio.get_running_loop()
        timeout_s = max(0.0, deadline - time.monotonic())
        try:
            x = await asyncio.wait_for(
                loop.run_in_executor(self._pool, codec.decode_request, request), timeout_s
            )
        except TimeoutError:
            raise PredictionTimeout(
                f"The {request.elements_field} were not decoded within {timeout_s:.3f} s.",
                cause="The server is overloaded, or an element is expensive to decode.",
                fix="Send fewer or smaller elements; or raise serving.deadline_s.",
            ) from None
        except PayloadError as error:
            raise InvalidInput(error.what, cause=error.cause, fix=error.fix) from None
        except Exception as error:  # the codec may be user code, which may raise anything
            site = error_site(error)
            raise ModelFailed(
                f"The codec of the model raised {site['error']}.",
                cause="The code of the codec probably does not support these elements. The log of "
                "the server has the location of the error.",
                fix="Report it to the owner of the model.",
                error_site=site,
            ) from None
        return as_arrays(x)

    def close(self) -> None:
        """Drop the waiting requests, and let the threads end after their current requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)
