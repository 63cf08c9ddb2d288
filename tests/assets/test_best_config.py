"""Progress of a running search in Dagster's log and in the terminal."""

import logging
from types import SimpleNamespace

from sluice.assets.best_config import _SearchReporter
from tests.sluice.tuning.toy_space import search, settings


def test_log_receives_the_trial_table_at_each_tenth_of_the_trials(tmp_path, caplog):
    search_settings, updates = settings(20, "asha"), []
    context = SimpleNamespace(log=logging.getLogger("dagster-of-test"))

    def progress(_text, *, num_done, total, rows):
        updates.append((num_done, total, len(rows)))

    with caplog.at_level(logging.INFO):
        search(
            tmp_path, search_settings, on_report=_SearchReporter(context, progress, search_settings)
        )

    tables = [text for text in caplog.messages if "trials ended\n" in text]
    assert tables[-1].startswith("20 of 20 trials ended\n")
    assert 5 <= len(tables) <= 10
    for text in tables:
        header, *rows = text.splitlines()[1:]
        assert header.split()[:5] == ["trial", "state", "epochs", "loss", "learning_rate"]
        assert 3 <= len(rows) <= 8
    assert [done for done, _, _ in updates] == sorted(done for done, _, _ in updates)
    assert updates[-1][:2] == (20, 20)
