"""State of functorch transforms, under which tensors have no readable values."""

import torch


def in_functorch_transform() -> bool:
    """Return whether a vmap or grad transform of functorch is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None
