"""Faults of token sequences: special tokens, masks and targets."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

TokenFault = Literal[
    "EOS token masked",
    "all targets ignored",
    "inverted padding mask",
    "future token leak",
    "targets not shifted",
    "duplicate BOS token",
]

_fault = partial(Fault, topic="tokens")

TOKEN_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="eos-token-masked",
        name="EOS token masked",
        severity="error",
        description=(
            "The end-of-sequence token is excluded from the targets, so the network never learns "
            "to stop."
        ),
        cause="The end token is also the padding token, and padding is masked out.",
        fix="Use a separate padding token, or mask targets by the length of each row.",
        detectors=("tracer",),
    ),
    _fault(
        id="all-targets-ignored",
        name="all targets ignored",
        severity="error",
        description=(
            "Every target of a batch is ignored: the mean loss of the batch is NaN, and a step "
            "with this loss makes all weights NaN."
        ),
        cause=("The answers of long rows are truncated, so that only their masked prompts remain."),
        fix=(
            "Truncate prompts, not answers, when rows are too long, and drop rows without a target."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="inverted-padding-mask",
        name="inverted padding mask",
        severity="error",
        description="A padding mask hides the tokens, so the network reads only the padding.",
        cause=(
            "The mask is True where the function expects False. In key_padding_mask, True excludes "
            "a position from attention. In a boolean attn_mask of scaled_dot_product_attention, "
            "True includes a position."
        ),
        fix="Invert the mask.",
        detectors=("tracer",),
    ),
    _fault(
        id="future-token-leak",
        name="future token leak",
        severity="error",
        description=(
            "Each output depends on the token, or the value of a series, that it predicts: the "
            "loss decreases, but the network cannot predict new tokens or values."
        ),
        cause="The attention has no causal mask, or a layer mixes all positions.",
        fix="Use a causal mask in the attention, or restrict the layer to past positions.",
        detectors=("tracer",),
    ),
    _fault(
        id="targets-not-shifted",
        name="targets not shifted",
        severity="error",
        description=(
            "A language model is trained to return the token that it receives, not the next one: "
            "the loss decreases to zero, and the generated text repeats one token."
        ),
        cause="The targets of the loss are the input tokens at the same positions.",
        fix="Use the tokens from the second one on as targets: logits[:, :-1] with ids[:, 1:].",
        detectors=("tracer",),
    ),
    _fault(
        id="duplicate-bos-token",
        name="duplicate BOS token",
        severity="error",
        description=(
            "Texts start with two BOS tokens, unlike the prompts that the network receives later."
        ),
        cause="A BOS token was added to texts that already contain a BOS token.",
        fix="Tokenize text from a chat template with add_special_tokens=False.",
        detectors=("tracer",),
    ),
)
