"""Makes the dropout of recurrent layers on CUDA a function of the state of the random generator.

Between the layers of an ``nn.GRU`` or ``nn.LSTM``, cuDNN draws the dropout masks from its own
state. torch seeds this state once from the CUDA generator, and no checkpoint contains it. A resumed
training would continue with other masks, and a recomputed forward pass would use other masks, too.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def reseeded_cudnn_dropout(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Seed cuDNN's dropout from the CUDA generator before each forward pass of a recurrent layer.

    Affects ``nn.RNNBase`` modules of several layers, in train mode and with a dropout rate above 0.
    Direct calls of ``forward`` are not affected, because they run no hook. On a CPU, where torch
    draws the masks from its generator, nothing is changed.

    Args:
        model: Network whose modules get a hook inside the context.
        device: Device of the training.
    """
    modules = [m for m in model.modules() if isinstance(m, nn.RNNBase) and m.num_layers > 1]

    def reseed(module: nn.Module, _inputs: object) -> None:
        assert isinstance(module, nn.RNNBase)
        if module.training and module.dropout > 0:
            # Setting the state of the CUDA generator makes torch seed the state of cuDNN again.
            torch.cuda.set_rng_state(torch.cuda.get_rng_state(device), device)

    with contextlib.ExitStack() as hooks:
        for module in modules if device.type == "cuda" else ():
            hooks.callback(module.register_forward_pre_hook(reseed).remove)
        yield
