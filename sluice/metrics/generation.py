"""Metrics of generated texts: BERTScore, ROUGE and perplexity (EVAL-1).

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
from sluice.base.pluralize import counted
from sluice.metrics.task_metrics import TaskMetrics, truth_values

NAMES = ("bertscore", "rouge1", "rouge2", "rougeL")
Embed = Callable[[str], ArrayLike]
"""From a text to one vector for each of its tokens (T, D); which network does it, a caller says."""
_WORD = re.compile(r"\w+")


def generation_metrics(
    reference: Sequence[str], generated: Sequence[str], *, embed: Embed | None
) -> TaskMetrics:
    """Return bertscore, rouge1, rouge2 and rougeL, each F1 and the mean over texts [rate].

    - bertscore: each token counts with the largest cosine between its vector and one of the other
      text's tokens; without weights and without a rescaled baseline;
    - rouge1, rouge2: shared words, and shared pairs of neighbouring words;
    - rougeL: the longest common subsequence of words.

    Words are runs of letters and digits, in lower case, as they are; a letter and its accent are
    one, however they are stored. A text without a word, or
    without a pair of words, shares none: 0. The names are absent where not defined: all of them
    when there is a reference without a word, bertscore without an encoder or when a vector of it is
    not finite or 0.

    Args:
        reference: What should have been written (texts).
        generated: What was written, in the same order.
        embed: The encoder of bertscore; numbers of different encoders do not compare.

    Raises:
        ContractError: There are no texts, not as many generated ones as references, one is no text,
            or the encoder gives no vectors of one width.

    Source:
        Zhang et al. (2020), "BERTScore: Evaluating Text Generation with BERT", ICLR. Lin (2004),
        "ROUGE: A Package for Automatic Evaluation of Summaries".
    """
    if not len(reference) or len(generated) != len(reference):
        raise ContractError(
            f"Each reference needs one generated text, got {len(reference)} and {len(generated)}.",
            fix="Give both in the same order, and an empty text where nothing was written.",
        )
    _require_texts(reference, what="references")
    _require_texts(generated, what="generated texts")
    wanted, given = ([_words(text) for text in texts] for texts in (reference, generated))
    empty = [row for row, words in enumerate(wanted) if not words]
    if empty:
        reason = f"{counted(len(empty), 'reference')} without a word, first at row {empty[0]}"
        return TaskMetrics(values={}, absent=dict.fromkeys(NAMES, reason))
    pairs = list(zip(wanted, given, strict=True))
    rouge = {
        "rouge1": float(np.mean([_shared_runs(*pair, length=1) for pair in pairs])),
        "rouge2": float(np.mean([_shared_runs(*pair, length=2) for pair in pairs])),
        "rougeL": float(np.mean([_common_order(*pair) for pair in pairs])),
    }
    if embed is None:
        return TaskMetrics(values=rouge, absent={"bertscore": "no encoder was given"})
    score, reason = _bertscore(reference, generated, embed)
    if reason:
        return TaskMetrics(values=rouge, absent={"bertscore": reason})
    return TaskMetrics(values={"bertscore": score, **rouge})


def perplexity(log_probability: ArrayLike) -> TaskMetrics:
    """Return perplexity: e to the mean of minus the log-probability of a token.

    Absent when a token has probability 0, its log-probability is no number, or the result is beyond
    the largest number.

    Args:
        log_probability: That the model gave each token of the texts, given those before it (T,)
            [nats], at most 0.

    Raises:
        ContractError: There is no token, or a log-probability is above 0.

    >>> perplexity([math.log(0.5), math.log(0.125)]).values
    {'perplexity': 4.0}
    """
    values_T = np.asarray(log_probability, np.float64)
    bad = int((~np.isfinite(values_T)).sum())
    if values_T.ndim == 1 and bad:
        reason = f"{bad} of {values_T.size} tokens have probability 0, or none"
        return TaskMetrics(values={}, absent={"perplexity": reason})
    values_T = truth_values(values_T, what="log-probabilities")
    if values_T.max() > 0:
        raise ContractError(
            f"Log-probabilities must be at most 0, got {values_T.max():g} at token "
            f"{int(values_T.argmax())}.",
            cause="These are losses, probabilities or logits.",
            fix="Give the natural logarithm of each token's probability.",
        )
    mean_nats = -float(values_T.mean())
    if mean_nats > math.log(sys.float_info.max):
        reason = f"a token costs {mean_nats:.4g} nats in the mean, beyond the largest number"
        return TaskMetrics(values={}, absent={"perplexity": reason})
    return TaskMetrics(values={"perplexity": math.exp(mean_nats)})


def _require_texts(texts: Sequence[str], *, what: str) -> None:
    if isinstance(texts, str):  # each of its letters would be one
        raise ContractError(f"The {what} must be several texts, got one.", fix="Give a list.")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ContractError(
                f"The {what} must be texts, got one of type {type(text).__name__} at row {row}.",
                fix="Give an empty text where nothing was written.",
            )


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


def _f1(shared: float, wanted: int, given: int) -> float:
    return 2 * shared / (wanted + given) if wanted + given else 0.0


def _shared_runs(wanted: Sequence[str], given: Sequence[str], *, length: int) -> float:
    runs = [
        Counter(zip(*(ws[at:] for at in range(length)), strict=False)) for ws in (wanted, given)
    ]
    return _f1((runs[0] & runs[1]).total(), runs[0].total(), runs[1].total())


def _common_order(wanted: Sequence[str], given: Sequence[str]) -> float:
    lengths = [0] * (len(given) + 1)
    for word in wanted:
        above = 0  # of the row before, one word back
        for at, other in enumerate(given, start=1):
            longest = above + 1 if word == other else max(lengths[at], lengths[at - 1])
            above, lengths[at] = lengths[at], longest
    return _f1(lengths[-1], len(wanted), len(given))


def _bertscore(
    reference: Sequence[str], generated: Sequence[str], embed: Embed
) -> tuple[float, str]:
    scores = []
    for row, (wanted, given) in enumerate(zip(reference, generated, strict=True)):
        wanted_RD, given_GD = _directions(embed(wanted), row), _directions(embed(given), row)
        if wanted_RD.size and not given_GD.size:
            scores.append(0.0)
            continue
        if wanted_RD.shape[1:] != given_GD.shape[1:] or not wanted_RD.size:
            raise ContractError(
                f"The encoder must give vectors of one width for both texts of row {row}, got "
                f"{wanted_RD.shape} for the reference and {given_GD.shape} for the generated one.",
                fix="Return one vector for each token, (tokens, width).",
            )
        cosine_RG = wanted_RD @ given_GD.T
        if not np.isfinite(cosine_RG).all():
            return math.nan, f"the encoder's vectors of row {row} are not finite, or 0"
        recall, precision = cosine_RG.max(axis=1).mean(), cosine_RG.max(axis=0).mean()
        total = recall + precision
        scores.append(2 * recall * precision / total if total > 0 else 0.0)
    return float(np.mean(scores)), ""


def _directions(vectors: ArrayLike, row: int) -> NDArray[np.float64]:
    try:
        vectors_TD = np.asarray(vectors, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # of tensors, too
        raise ContractError(
            f"The encoder must give vectors of row {row} that NumPy takes: {error}.",
            fix="Return one vector for each token, as in vectors.detach().float().cpu().numpy().",
        ) from None
    if vectors_TD.size and vectors_TD.ndim != 2:
        raise ContractError(
            f"The encoder must give one vector for each token of row {row}, (tokens, width), got "
            f"{vectors_TD.shape}.",
            fix="Return the token vectors, not their mean.",
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(vectors_TD / np.linalg.norm(vectors_TD, axis=-1, keepdims=True))
