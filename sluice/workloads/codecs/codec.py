"""Base class of codecs: how the body of a request becomes the input of a network.

Shape legend: B = elements of a request.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError

from sluice.base.errors import ContractError, PayloadError
from sluice.data.rows.protocol import ModelInput
from sluice.workloads.codecs.identity import CodecIdentity, CodecProbe
from sluice.workloads.codecs.request import CodecRequest, describe_invalid


class Codec(ABC):
    """Converts the body of a request to the input of a network.

    A codec is built by ``Workload.codec()`` in training and in serving. Only its identity is
    stored, so that a stored file cannot choose which code runs. ``decode_request`` is called in
    several threads at once.
    """

    kind: ClassVar[str]
    """Name of the kind, such as ``text``; part of the identity."""

    request_type: ClassVar[type[CodecRequest]]
    """Class of the request's body, with the bounds that JSON Schema can express."""

    max_elements: int = 256
    """Maximum number of elements of a request. The server's ``max_windows`` applies as well."""

    def decode(self, body: Mapping[str, Any]) -> ModelInput:
        """Return the input of the network for a body, one entry per element.

        Raises:
            PayloadError: The body is invalid. The message names the element, what was required
                and what arrived.
        """
        return self.decode_request(self.parse(body))

    def parse(self, body: Mapping[str, Any]) -> CodecRequest:
        """Return a body as a request of ``request_type``.

        Raises:
            PayloadError: A field is missing or unknown, or has another type; or there are too many
                elements.
        """
        try:
            request = self.request_type.model_validate(dict(body))
        except ValidationError as error:
            raise PayloadError(
                describe_invalid(error, self.request_type), fix="See schema() of the codec."
            ) from None
        if len(request.elements) > self.max_elements:
            raise PayloadError(
                f"A request may have at most {self.max_elements} {request.elements_field}, got "
                f"{len(request.elements)}.",
                fix="Send several requests.",
            )
        return request

    @abstractmethod
    def decode_request(self, request: Any) -> ModelInput:
        """Return the input of the network for a request of ``request_type``.

        Raises:
            PayloadError: An element is invalid. The message names the element, what was required
                and what arrived.
        """

    @abstractmethod
    def identity_parts(self) -> dict[str, str]:
        """Return what the identity is computed from: settings as JSON, digests of files, by name.

        Files are read again at every call, so that a changed file changes the identity.
        """

    @abstractmethod
    def example(self) -> ModelInput:
        """Return the input of one made-up element, with which a loaded network is warmed up."""

    def probes(self) -> tuple[CodecProbe, ...]:
        """Return fixed elements, each with its decoded result; by default none."""
        return ()

    def identity(self) -> CodecIdentity:
        """Return the identity: the results of ``identity_parts`` and ``probes``, and their digest.

        Raises:
            ContractError: A file is missing, or a probe cannot be decoded.
        """
        return CodecIdentity.of(self.kind, self.identity_parts(), self.probes())

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a request's body."""
        schema = self.request_type.model_json_schema()
        elements = schema["properties"][self.request_type.elements_field]
        elements["maxItems"] = self.max_elements
        return schema

    def request_of(
        self,
        raw: pd.DataFrame,  # noqa: ARG002 - used by the codecs that override the method
        frame: pd.DataFrame,  # noqa: ARG002
        positions: NDArray[np.int64],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the fields of a request for given rows, as a client would send them.

        Args:
            raw: Raw rows.
            frame: Feature frame, computed from ``raw``.
            positions: Positions of the rows in ``frame``.

        Raises:
            ContractError: The codec cannot build the request from these tables.
        """
        raise ContractError(
            f"{type(self).__name__} cannot build a request from the rows of the pipeline.",
            cause="The payload that a client sends is not a column of the raw rows.",
            fix="Implement request_of(raw, frame, positions) of the workload: return the fields of "
            "a request, such as {'texts': [...]}.",
        )

    def watched_values(
        self,
        request: Any,  # noqa: ARG002 - used by the codecs that override the method
        x: ModelInput,  # noqa: ARG002
    ) -> tuple[float, ...]:
        """Return the values of the workload's feature columns in the first element.

        They are stored with sampled requests, to detect drift, and the POC gate compares them with
        the feature frame. By default there are no values.

        Args:
            request: The request.
            x: Decoded elements of the request.
        """
        return ()


def to_json_text(value: Any) -> str:
    """Return a plain value as JSON text, for ``Codec.identity_parts``."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True)
