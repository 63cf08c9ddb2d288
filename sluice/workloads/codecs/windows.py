"""Codec of windows of feature rows, which a client computes itself.

Shape legend: N = windows, L = rows of a window, D = features.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import ModelInput
from sluice.workloads.codecs.codec import Codec, to_json_text
from sluice.workloads.codecs.request import CodecRequest
from sluice.workloads.codecs.window_requests import PredictRequest, WindowReader


class WindowsCodec(Codec):
    """Windows of feature rows: the codec of workloads whose inputs are plain windows.

    Args:
        columns: Feature columns, in the order of the network.
        seq_len: Number of rows of a window (L).
    """

    kind: ClassVar[str] = "windows"
    request_type: ClassVar[type[CodecRequest]] = PredictRequest
    max_elements: int = 100_000

    def __init__(self, columns: Sequence[str], seq_len: int) -> None:
        self.columns, self.seq_len = tuple(columns), seq_len
        self._reader = WindowReader(columns, seq_len)

    def decode_request(self, request: PredictRequest) -> ModelInput:
        """Return the windows as a tensor (N, L, D)."""
        return torch.from_numpy(self._reader.read_windows(request))

    def identity_parts(self) -> dict[str, str]:
        """Return the columns and the window length."""
        return {"columns": to_json_text(self.columns), "seq_len": to_json_text(self.seq_len)}

    def example(self) -> ModelInput:
        """Return one window of zeros."""
        return torch.zeros(1, self.seq_len, len(self.columns))

    def request_of(
        self,
        raw: pd.DataFrame,  # noqa: ARG002 - a client sends features
        frame: pd.DataFrame,
        positions: NDArray[np.int64],
    ) -> dict[str, Any]:
        """Return the columns and the windows that end at the given rows.

        Raises:
            ContractError: A row has too few earlier rows.
        """
        if positions.size and int(positions.min()) < self.seq_len - 1:
            raise ContractError(
                f"Row {int(positions.min())} has no complete window of {self.seq_len} rows.",
                fix="Choose later rows.",
            )
        windows = [
            frame.iloc[row + 1 - self.seq_len : row + 1][list(self.columns)].to_numpy(np.float32)
            for row in positions.tolist()
        ]
        return {"columns": list(self.columns), "windows": [window.tolist() for window in windows]}

    def watched_values(
        self,
        request: PredictRequest,  # noqa: ARG002 - the decoded windows are sufficient
        x: ModelInput,
    ) -> tuple[float, ...]:
        """Return the newest row of the first window."""
        assert isinstance(x, torch.Tensor)
        return tuple(x[0, -1].tolist())
