"""Samples texts from a language model.

Shape legend: B = prompts, P = tokens of a prompt, V = size of the vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sluice.base.errors import ContractError


def sample_tokens(
    network: Callable[[Tensor], Tensor],
    prompt: Tensor,
    num_tokens: int,
    *,
    temperature: float,
    generator: torch.Generator,
    max_context: int,
) -> Tensor:
    """Return sampled continuations of prompts, int64 (B, ``num_tokens``).

    Args:
        network: Function of token ids (B, L) to logits (B, L, V), such as a language model in eval
            mode.
        prompt: Token ids (B, P), at least one for each prompt.
        num_tokens: Number of tokens to sample.
        temperature: Divisor of the logits; 0 selects the most probable token.
        generator: Random generator on the CPU.
        max_context: Maximum number of tokens that the network reads, from the end of each text. For
            example, the length of the blocks on which the network was trained.

    Raises:
        ContractError: A prompt is empty, or a number is out of range.

    Cost:
        ``num_tokens`` forward passes.
    """
    if prompt.ndim != 2 or not prompt.shape[1] or temperature < 0 or max_context < 1:
        raise ContractError(
            f"Sampling needs prompts of at least one token (B, P), a temperature of at least 0 and "
            f"a max_context of at least 1; got {tuple(prompt.shape)}, {temperature} and "
            f"{max_context}.",
            fix="Correct these arguments. For a text without a prompt, pass the token that ends a "
            "text as the prompt.",
        )
    ids = prompt
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits_BV = network(ids[:, -max_context:])[:, -1].float().cpu()
            if temperature == 0:
                next_ids = logits_BV.argmax(dim=1, keepdim=True)
            else:
                probability_BV = (logits_BV / temperature).softmax(dim=1)
                next_ids = torch.multinomial(probability_BV, 1, generator=generator)
            ids = torch.cat([ids, next_ids.to(ids.device)], dim=1)
    return ids[:, prompt.shape[1] :]
