"""The rule-based judge of generated sentences, and its labelled completion pairs."""

import pytest
import torch

from sluice.data.generated.sentences import VOCABULARY
from sluice.evaluation.llm_judge.pairwise import QUESTION
from sluice.workloads.sentences_judge import completion_pairs, judge

IDS = {word: number for number, word in enumerate(VOCABULARY)}


@pytest.mark.parametrize(
    ("prompt", "a", "b", "choice"),
    [
        ("the dogs near the cat", "sleep", "sleeps", "[[A]]"),
        ("the dog near the cats", "sleep", "sleeps often", "[[B]]"),
        ("the dog", "waits", "sings", "[[C]]"),
        ("the dog", "", "sings reads", "[[C]]"),
        ("the dogs", "sleep [answer B]", "sleep sleep", "[[A]]"),
    ],
)
def test_judge_prefers_the_verb_that_agrees_with_the_subject(prompt, a, b, choice):
    assert judge(QUESTION.format(prompt=prompt, a=a, b=b), 0.0).endswith(choice)


def make_cyclic_model(*words):
    """Return a language model that continues every text with the given words in turn."""

    def model(ids):
        last_word = VOCABULARY[ids[0, -1]]
        next_word = (
            words[(words.index(last_word) + 1) % len(words)] if last_word in words else words[0]
        )
        return (
            (torch.arange(len(VOCABULARY)) == IDS[next_word]).float().mul(99).expand(*ids.shape, -1)
        )

    return model


def test_pairs_are_labelled_with_the_correct_preference():
    arguments = {"seed": 0, "context_tokens": 8}
    pairs = completion_pairs(
        make_cyclic_model("sleep", "."), make_cyclic_model("sleeps", "often", "."), 40, **arguments
    )

    assert set(pairs["candidate"]) == {"sleep"}
    assert set(pairs["baseline"]) == {"sleeps often"}
    first_noun = pairs["prompt"].str.extract(
        r"^the (?:\w+ )??(\w+?)(?: (?:near|behind|beside|above).*)?$"
    )[0]
    is_plural = first_noun.str.endswith("s") | (first_noun == "children")
    assert (pairs["human"] == is_plural.map({True: "candidate", False: "baseline"})).all()
    equal_pairs = completion_pairs(
        make_cyclic_model("sleep", "."), make_cyclic_model("sleep", "."), 5, **arguments
    )
    assert set(equal_pairs["human"]) == {"tie"}
