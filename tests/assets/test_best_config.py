"""What Dagster's log and the terminal get to see of a running search."""

import logging
from types import SimpleNamespace

from sluice.assets.best_config import _SearchProgress
from tests.sluice.tuning.toy_space import search, settings


def test_the_log_gets_the_table_at_each_tenth_of_the_trials(tmp_path, caplog):
    own, shown = settings(20, "asha"), []
    context = SimpleNamespace(log=logging.getLogger("dagster-of-test"))

    def progress(_text, *, done, total, rows):
        shown.append((done, total, len(rows)))

    with caplog.at_level(logging.INFO):
        search(tmp_path, own, on_report=_SearchProgress(context, progress, own))

    tables = [text for text in caplog.messages if "trials ended\n" in text]
    assert tables[-1].startswith("20 of 20 trials ended\n")
    assert 5 <= len(tables) <= 10
    for text in tables:
        head, *rows = text.splitlines()[1:]
        assert head.split()[:5] == ["trial", "state", "epochs", "loss", "learning_rate"]
        assert 3 <= len(rows) <= 8
    assert [done for done, _, _ in shown] == sorted(done for done, _, _ in shown)
    assert shown[-1][:2] == (20, 20)
