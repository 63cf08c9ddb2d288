"""Made-up input to warm up a loaded model. This module does not import torch."""

from typing import TYPE_CHECKING

import numpy as np

from sluice.serving.contract import InputContract
from sluice.serving.model_arrays import ModelArrays, as_arrays

if TYPE_CHECKING:
    from sluice.serving.contract import ModelContract
    from sluice.workloads.codecs.codec import Codec


def warm_up_inputs(contract: "ModelContract", codec: "Codec | None") -> ModelArrays:
    """Return the input of one made-up element: a window of zeros, or the example of the codec.

    Args:
        contract: Contract of the model.
        codec: Codec of the model; None for windows.
    """
    if isinstance(contract, InputContract):
        return np.zeros((1, contract.seq_len, len(contract.columns)), np.float32)
    assert codec is not None, "a model in this process has its codec"
    return as_arrays(codec.example())
