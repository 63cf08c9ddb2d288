"""Computes metrics of generated texts: BERTScore, ROUGE and perplexity.

Shape legend: T = tokens, R and G = tokens of a reference and of a generated text, D = width of an
embedding.
"""

import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.metrics.task_metrics import TaskMetrics, validate_targets

METRIC_NAMES = ("bertscore", "rouge1", "rouge2", "rougeL")
"""Names of the metrics of ``generation_metrics``."""
Embed = Callable[[str], ArrayLike]
"""Encoder: function of a text that returns one vector per token (T, D)."""
_WORD = re.compile(r"\w+")


def generation_metrics(
    reference: Sequence[str], generated: Sequence[str], *, embed: Embed | None
) -> TaskMetrics:
    """Return bertscore, rouge1, rouge2 and rougeL, each as F1 averaged over texts [rate].

    - bertscore: mean over tokens of the largest cosine similarity between the vector of the token
      and the vectors of the other text's tokens; without token weights and baseline rescaling;
    - rouge1, rouge2: common words, and common pairs of neighbouring words;
    - rougeL: the longest common subsequence of words.

    Words are runs of letters, digits and underscores in lower case, without stemming; letters with
    accents are normalised (NFC). The rouge metrics of a generated text without words are 0, and
    rouge2 also if one of the two texts has a single word. Undefined metrics are absent: all of them
    if a reference has no word; bertscore if there is no encoder, or if a vector of the encoder is
    non-finite or 0.

    Args:
        reference: Reference texts.
        generated: Generated texts, in the same order.
        embed: Encoder of bertscore; scores of different encoders are not comparable.

    Raises:
        ContractError: There are no texts, the numbers of references and generated texts differ, a
            text is not a string, or the encoder does not return vectors of one width.

    Source:
        Zhang et al. (2020), "BERTScore: Evaluating Text Generation with BERT", ICLR. Lin (2004),
        "ROUGE: A Package for Automatic Evaluation of Summaries".
    """
    if not len(reference) or len(generated) != len(reference):
        raise ContractError(
            f"Each reference needs one generated text, got {len(reference)} and {len(generated)}.",
            fix="Pass both in the same order, with an empty text where nothing was generated.",
        )
    _require_texts(reference, what="references")
    _require_texts(generated, what="generated texts")
    reference_words = [_split_words(text) for text in reference]
    generated_words = [_split_words(text) for text in generated]
    rows_without_words = [row for row, words in enumerate(reference_words) if not words]
    if rows_without_words:
        reason = (
            f"{pluralize(len(rows_without_words), 'reference')} without a word, first at row "
            f"{rows_without_words[0]}"
        )
        return TaskMetrics(values={}, absent=dict.fromkeys(METRIC_NAMES, reason))
    pairs = list(zip(reference_words, generated_words, strict=True))
    rouge = {
        "rouge1": float(np.mean([_rouge_n(*pair, length=1) for pair in pairs])),
        "rouge2": float(np.mean([_rouge_n(*pair, length=2) for pair in pairs])),
        "rougeL": float(np.mean([_rouge_l(*pair) for pair in pairs])),
    }
    if embed is None:
        return TaskMetrics(values=rouge, absent={"bertscore": "no encoder was given"})
    score, reason = _bertscore(reference, generated, embed)
    if reason:
        return TaskMetrics(values=rouge, absent={"bertscore": reason})
    return TaskMetrics(values={"bertscore": score, **rouge})


def perplexity(log_probability: ArrayLike) -> TaskMetrics:
    """Return perplexity: the exponential of the mean negative log-probability of a token.

    The perplexity is absent if a log-probability is NaN or infinite, as for a token of probability
    0, or if the result exceeds the largest float.

    Args:
        log_probability: Log-probability of each token given the previous ones (T,) [nats], at
            most 0.

    Raises:
        ContractError: There are no tokens, or a log-probability is above 0.

    >>> perplexity([math.log(0.5), math.log(0.125)]).values
    {'perplexity': 4.0}
    """
    values_T = np.asarray(log_probability, np.float64)
    num_nonfinite = int((~np.isfinite(values_T)).sum())
    if values_T.ndim == 1 and num_nonfinite:
        reason = f"{num_nonfinite} of {values_T.size} log-probabilities are infinite or NaN"
        return TaskMetrics(values={}, absent={"perplexity": reason})
    values_T = validate_targets(values_T, what="log-probabilities")
    if values_T.max() > 0:
        raise ContractError(
            f"Log-probabilities must be at most 0, got {values_T.max():g} at token "
            f"{int(values_T.argmax())}.",
            cause="The values are losses, probabilities or logits.",
            fix="Pass the natural logarithm of each token's probability.",
        )
    mean_nats = -float(values_T.mean())
    if mean_nats > math.log(sys.float_info.max):
        reason = f"exp({mean_nats:.4g} nats per token) exceeds the largest float"
        return TaskMetrics(values={}, absent={"perplexity": reason})
    return TaskMetrics(values={"perplexity": math.exp(mean_nats)})


def _require_texts(texts: Sequence[str], *, what: str) -> None:
    if isinstance(texts, str):  # otherwise each letter would count as a text
        raise ContractError(
            f"The {what} must be a list of texts, got a single text.", fix="Pass a list."
        )
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ContractError(
                f"The {what} must be texts, got one of type {type(text).__name__} at row {row}.",
                fix="Pass an empty text where nothing was generated.",
            )


def _split_words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


def _f1(num_common: float, num_reference: int, num_generated: int) -> float:
    num_total = num_reference + num_generated
    return 2 * num_common / num_total if num_total else 0.0


def _rouge_n(reference: Sequence[str], generated: Sequence[str], *, length: int) -> float:
    """Return the F1 of the common runs of ``length`` words."""
    reference_runs, generated_runs = (
        Counter(zip(*(words[start:] for start in range(length)), strict=False))
        for words in (reference, generated)
    )
    num_common = (reference_runs & generated_runs).total()
    return _f1(num_common, reference_runs.total(), generated_runs.total())


def _rouge_l(reference: Sequence[str], generated: Sequence[str]) -> float:
    """Return the F1 of the longest common subsequence of words."""
    # lengths[i]: longest common subsequence of the reference words so far and the first i words of
    # ``generated``.
    lengths = [0] * (len(generated) + 1)
    for word in reference:
        diagonal = 0  # length before the current word of both texts
        for i, generated_word in enumerate(generated, start=1):
            longest = diagonal + 1 if word == generated_word else max(lengths[i], lengths[i - 1])
            diagonal, lengths[i] = lengths[i], longest
    return _f1(lengths[-1], len(reference), len(generated))


def _bertscore(
    reference: Sequence[str], generated: Sequence[str], embed: Embed
) -> tuple[float, str]:
    """Return (score, ""), or (NaN, reason) if the score is undefined."""
    scores = []
    for row, (reference_text, generated_text) in enumerate(zip(reference, generated, strict=True)):
        reference_RD = _unit_vectors(embed(reference_text), row)
        generated_GD = _unit_vectors(embed(generated_text), row)
        if reference_RD.size and not generated_GD.size:
            scores.append(0.0)
            continue
        if reference_RD.shape[1:] != generated_GD.shape[1:] or not reference_RD.size:
            raise ContractError(
                f"The encoder must return vectors of one width for both texts of row {row}, got "
                f"{reference_RD.shape} for the reference and {generated_GD.shape} for the "
                "generated one.",
                fix="Return one vector for each token, (tokens, width).",
            )
        cosine_RG = reference_RD @ generated_GD.T
        if not np.isfinite(cosine_RG).all():
            return math.nan, f"the encoder's vectors of row {row} are non-finite, or 0"
        recall, precision = cosine_RG.max(axis=1).mean(), cosine_RG.max(axis=0).mean()
        denominator = recall + precision
        scores.append(2 * recall * precision / denominator if denominator > 0 else 0.0)
    return float(np.mean(scores)), ""


def _unit_vectors(vectors: ArrayLike, row: int) -> NDArray[np.float64]:
    """Return the vectors scaled to length 1 (T, D); NaN for a vector of zeros."""
    try:
        vectors_TD = np.asarray(vectors, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # torch tensors raise RuntimeError
        raise ContractError(
            f"The encoder must return vectors of row {row} that NumPy accepts: {error}.",
            fix="Return one vector for each token, as in vectors.detach().float().cpu().numpy().",
        ) from None
    if vectors_TD.size and vectors_TD.ndim != 2:
        raise ContractError(
            f"The encoder must return one vector for each token of row {row}, (tokens, width), got "
            f"{vectors_TD.shape}.",
            fix="Return the token vectors, not their mean.",
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(vectors_TD / np.linalg.norm(vectors_TD, axis=-1, keepdims=True))
