"""Sentences completed by two language models, and a judge of them that needs no network access."""

import re
from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from sluice.data.generated.sentences import (
    END,
    PLURAL,
    SINGULAR,
    VERBS,
    VOCABULARY,
    generate_sentences,
    is_grammatical,
)
from sluice.models.generation import sample_tokens

LanguageModel = Callable[[Tensor], Tensor]
"""Function of token ids (B, L) to logits (B, L, V), such as a trained network in eval mode."""

_MAX_SAMPLED_TOKENS = 12
_ALL_VERBS = {*VERBS[False], *VERBS[True]}
_ANSWER = r"\[answer {letter}\]\n(.*?)\n\[end of answer {letter}\]"


def completion_pairs(
    candidate: LanguageModel,
    baseline: LanguageModel,
    num_pairs: int,
    *,
    seed: int,
    context_tokens: int,
) -> pd.DataFrame:
    """Return sentences that both models complete, with the truth in place of a person's label.

    A prompt contains everything before the verb, such as "the dogs near the old house".

    Args:
        candidate: Language model on ``VOCABULARY``.
        baseline: The model to compare with.
        num_pairs: Number of prompts.
        seed: Seed of the prompts and of the samples.
        context_tokens: Number of tokens that the models read, the length of a block of training.

    Returns:
        Columns prompt, candidate, baseline and human, as ``sluice judge`` reads them. The label
        is the model whose sentence is grammatical, or 'tie'.
    """
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for words in generate_sentences(num_pairs, seed=seed):
        prompt = words[: next(n for n, word in enumerate(words) if word in _ALL_VERBS)]
        tokens = torch.tensor([[ids[END], *(ids[word] for word in prompt)]])
        completions = []
        for model in (candidate, baseline):
            sampled = sample_tokens(
                model,
                tokens,
                _MAX_SAMPLED_TOKENS,
                temperature=1.0,
                generator=generator,
                max_context=context_tokens,
            )
            sampled_words = [VOCABULARY[token] for token in sampled[0].tolist()]
            completions.append(
                sampled_words[: sampled_words.index(END)] if END in sampled_words else sampled_words
            )
        is_correct = [is_grammatical([*prompt, *completion]) for completion in completions]
        winner = "candidate" if is_correct[0] else "baseline"
        rows.append(
            {
                "prompt": " ".join(prompt),
                "candidate": " ".join(completions[0]),
                "baseline": " ".join(completions[1]),
                "human": "tie" if is_correct[0] == is_correct[1] else winner,
            }
        )
    return pd.DataFrame(rows)


def judge(question: str, temperature: float) -> str:  # noqa: ARG001 - a judge without randomness
    """State which of two completions is better: the one whose verb agrees with the subject.

    ``sluice judge`` asks the question. The function replaces a large language model: it knows which
    nouns and verbs are singular or plural, but not the rest of the grammar.
    """
    prompt = _extract_text(question, r"\[prompt\]\n(.*?)\n\[end of prompt\]").split()
    scores = [
        _does_verb_agree(prompt, _extract_text(question, _ANSWER.format(letter=letter)).split())
        for letter in "AB"
    ]
    if scores[0] == scores[1]:
        return "Both are equally good. [[C]]"
    return f"The verb agrees with the subject in one sentence. [[{'A' if scores[0] else 'B'}]]"


def _extract_text(question: str, pattern: str) -> str:
    match = re.search(pattern, question, re.DOTALL)
    return match[1] if match else ""


def _does_verb_agree(prompt: list[str], completion: list[str]) -> bool:
    subject = next((word for word in prompt if word in (*SINGULAR, *PLURAL)), None)
    verbs = [word for word in completion if word in _ALL_VERBS]
    return len(verbs) == 1 and verbs[0] in VERBS[subject in PLURAL]
