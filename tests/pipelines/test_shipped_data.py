"""The shipped pipelines on texts, images and tokens run the whole line with small settings."""

import contextlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest

from sluice.assets.evaluation_record import Evaluation
from sluice.assets.promotion_verdict import PromotionDecision
from sluice.config.pipeline import PipelineSettings, defs_folder, find_pipeline
from sluice.data.generated.sentences import END, PLACES, VERBS, VOCABULARY
from sluice.tuning.settings import SearchSettings
from tests.pipelines.conftest import home_at, ledger_of, run_line

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SLUICE = (sys.executable, "-m", "sluice")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "train-a-language-model.md"


def shrink(name: str, training: dict, **workload_settings) -> PipelineSettings:
    shipped = find_pipeline(name, defs_folder())
    return shipped.model_copy(
        update={
            "workload_settings": shipped.workload_settings | workload_settings,
            "training": shipped.training.model_copy(update=training),
            "compute": shipped.compute.model_copy(update={"workers": 1}),
            "tracking": shipped.tracking.model_copy(update={"mode": "off"}),
        }
    )


@pytest.fixture
def run(tmp_path, monkeypatch):
    def run(pipeline: PipelineSettings):
        home = home_at(tmp_path / "home")
        monkeypatch.setenv("SLUICE_HOME", str(home.root))
        report = run_line(pipeline, home)

        def read(kind, name):
            path = home.records / pipeline.name / f"{name}.json"
            return kind.model_validate_json(path.read_bytes())

        return report, home, read

    return run


def test_texts_with_a_mask_are_searched_trained_and_promoted(run):
    """The inputs are a dict of ids and mask."""
    pipeline = shrink("reviews", {"max_epochs": 4}, num_reviews=2_500)
    search = SearchSettings(num_trials=2)
    _, home, read = run(pipeline.model_copy(update={"search": search}))

    evaluation = read(Evaluation, "evaluation")
    verdict = read(PromotionDecision, "promotion_verdict").verdict
    # 5 % of the labels are wrong. Four epochs on 2,500 reviews reached 0.87.
    assert evaluation.candidate.metrics["accuracy"] > 0.8
    assert evaluation.reference.metrics["accuracy"] < 0.8
    assert verdict.outcome == "PROMOTE"
    with ledger_of(home) as ledger:
        assert ledger.production_number("reviews") == 1


def test_images_in_a_folder_are_trained_with_augmentation(run):
    pipeline = shrink("shapes", {"max_epochs": 5}, num_images=1_200)
    _, home, read = run(pipeline)

    assert len(list((home.generated / "shapes_1200").rglob("*.png"))) == 1_200
    assert read(Evaluation, "evaluation").candidate.metrics["accuracy"] > 0.6


def test_language_model_is_promoted_judged_served_and_rehearsed(run, tmp_path, monkeypatch):
    _, home, read = run(shrink("sentences", {"max_epochs": 5}, num_sentences=20_000))

    evaluation = read(Evaluation, "evaluation")
    metrics = evaluation.candidate.metrics
    # Perplexity is the mean of exp(loss) over the seeds, whose losses hardly differ.
    assert 1 <= metrics["perplexity"] / np.exp(metrics["loss"]) < 1.001
    assert 5.26 < metrics["perplexity"] < evaluation.reference.metrics["perplexity"]
    assert read(PromotionDecision, "promotion_verdict").verdict.outcome == "PROMOTE"
    with ledger_of(home) as ledger:
        assert ledger.production_number("sentences") == 1

    monkeypatch.chdir(tmp_path)
    names = {"Path": Path}
    [block] = re.findall(r"```python continued\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block, names)
    pairs = pd.read_csv("pairs.csv")
    assert (pairs["human"] == "candidate").sum() > 2 * (pairs["human"] == "baseline").sum()
    judge = "sluice.workloads.sentences_judge:judge"
    judge_result = subprocess.run(
        [*SLUICE, "judge", "pairs.csv", "--judge", judge],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"preferred +candidate", judge_result.stdout)

    with serve_model("sentences") as url:
        [block] = re.findall(
            r"```python\n(import numpy as np\nimport httpx.*?)```", PAGE.read_text(), re.DOTALL
        )
        exec(block.replace("http://localhost:8000", url), names)
        wrong = httpx.post(f"{url}/predict", json={"sequences": [[0, 44]]})
    words = [VOCABULARY[number] for number in names["ids"]]
    assert len(words) == 13
    # After "the" comes an adjective or a noun, and before it an end or a place: almost always.
    followers = [b for a, b in itertools.pairwise(words) if a == "the"]
    verbs = {*VERBS[False], *VERBS[True], *PLACES, END, "the"}
    assert followers
    assert not verbs & set(followers)
    assert (wrong.status_code, wrong.json()["kind"]) == (422, "invalid_input")
    assert "token ids from 0 to 43, got 44" in wrong.json()["what"]

    rehearsal_result = subprocess.run(
        [*SLUICE, "rollout", "rehearse", "sentences", "--fault", "quality", "--json"],
        capture_output=True,
        text=True,
        check=False,  # on a busy machine the latency guard may fire first
    )
    found = json.loads(rehearsal_result.stdout)
    assert (found["ended"], found["failed"]) == ("rolled_back", 0), found["reason"]


@contextlib.contextmanager
def serve_model(model: str) -> Iterator[str]:
    """Serve the production version in a separate process; yield its URL."""
    with (
        open("serve.log", "w") as log,
        subprocess.Popen(
            [*SLUICE, "serve", model, "--port", "0"], stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
