"""Metrics of generated texts: BERTScore, ROUGE and perplexity.

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

NAMES = ("bertscore", "rouge1", "rouge2", "rougeL")
Embed = Callable[[str], ArrayLike]
"""Encoder from a text to one vector per token (T, D); the caller chooses the network."""
_WORD = re.compile(r"\w+")


def generation_metrics(
    reference: Sequence[str], generated: Sequence[str], *, embed: Embed | None
) -> TaskMetrics:
    """Return bertscore, rouge1, rouge2 and rougeL, each as F1 averaged over texts [rate].

    - bertscore: each token counts with the largest cosine similarity between its vector and those
      of the other text's tokens; without token weights and without baseline rescaling;
    - rouge1, rouge2: common words, and common pairs of neighbouring words;
    - rougeL: the longest common subsequence of words.

    Words are runs of letters and digits in lower case, without stemming; letters with accents are
    normalised (NFC). A text without words, or without pairs of words, has no common ones: 0.
    Undefined metrics are absent: all of them if a reference has no word; bertscore without an
    encoder, or if one of its vectors is non-finite or 0.

    Args:
        reference: Reference texts.
        generated: Generated texts, in the same order.
        embed: Encoder of bertscore; scores of different encoders are not comparable.

    Raises:
        ContractError: There are no texts, the numbers of references and generated texts differ, one
            is not a string, or the encoder does not return vectors of one width.

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
    wanted, given = ([_words(text) for text in texts] for texts in (reference, generated))
    empty = [row for row, words in enumerate(wanted) if not words]
    if empty:
        reason = f"{pluralize(len(empty), 'reference')} without a word, first at row {empty[0]}"
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
    """Return perplexity: the exponential of the mean negative log-probability of a token.

    Absent if a token has probability 0, its log-probability is NaN, or the result exceeds the
    largest float.

    Args:
        log_probability: Log-probability of each token given the previous ones (T,) [nats], at
            most 0.

    Raises:
        ContractError: There are no tokens, or a log-probability is above 0.

    >>> perplexity([math.log(0.5), math.log(0.125)]).values
    {'perplexity': 4.0}
    """
    values_T = np.asarray(log_probability, np.float64)
    bad = int((~np.isfinite(values_T)).sum())
    if values_T.ndim == 1 and bad:
        reason = f"{bad} of {values_T.size} tokens have probability 0, or none"
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
        reason = f"the mean of {mean_nats:.4g} nats per token exceeds the largest float"
        return TaskMetrics(values={}, absent={"perplexity": reason})
    return TaskMetrics(values={"perplexity": math.exp(mean_nats)})


def _require_texts(texts: Sequence[str], *, what: str) -> None:
    if isinstance(texts, str):  # each of its letters would count as a text
        raise ContractError(f"The {what} must be a list of texts, got one.", fix="Pass a list.")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ContractError(
                f"The {what} must be texts, got one of type {type(text).__name__} at row {row}.",
                fix="Pass an empty text where nothing was generated.",
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
        above = 0  # length at the previous word of both texts
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
                f"The encoder must return vectors of one width for both texts of row {row}, got "
                f"{wanted_RD.shape} for the reference and {given_GD.shape} for the generated one.",
                fix="Return one vector for each token, (tokens, width).",
            )
        cosine_RG = wanted_RD @ given_GD.T
        if not np.isfinite(cosine_RG).all():
            return math.nan, f"the encoder's vectors of row {row} are non-finite, or 0"
        recall, precision = cosine_RG.max(axis=1).mean(), cosine_RG.max(axis=0).mean()
        total = recall + precision
        scores.append(2 * recall * precision / total if total > 0 else 0.0)
    return float(np.mean(scores)), ""


def _directions(vectors: ArrayLike, row: int) -> NDArray[np.float64]:
    try:
        vectors_TD = np.asarray(vectors, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError is raised by tensors
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
