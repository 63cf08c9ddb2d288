"""OBS-1, ROLL-2: Prometheus with the files of deploy/ scrapes servers and rolls back a rollout."""

import io
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.observability.alerts import Alert, raise_alert
from sluice.pipelines.pipeline_metrics import metrics_reader
from sluice.pipelines.report_server import ReportServer, listen
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.serving.ledger_models import LedgerModels
from sluice.serving.ledger_rollback import LedgerRollback
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from sluice.serving.log import json_log
from sluice.serving.rollback import RollbackWebhook
from sluice.serving.server import open_serving, serve
from sluice.serving.state import Serving
from sluice.serving.tokens import Tokens
from tests.sluice.registry.ledger_samples import MODEL, promote_chain, register_sample
from tests.sluice.serving.serving_samples import SECRET, RaisingNetwork, quick_settings
from tests.support.prometheus_process import (
    alertmanager,
    prometheus,
    query_series,
    require,
    wait_for,
)

DEPLOY = Path(__file__).parents[2] / "deploy"
HOOK_SECRET = "another-battery-staple"
WINDOW = {"columns": ["slope", "value"], "windows": [[[0.0, 1.0]] * 8]}
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def utc_now() -> datetime:
    return datetime.now(UTC)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_expressions() -> list[str]:
    found = []
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        found += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [expression.replace("$model", ".+") for expression in found]


class FailingRollout:
    """A server whose challenger raises in every prediction, with its registry."""

    def __init__(self, home: Home, ledger: RolloutLedger) -> None:
        store = ArtifactStore(home.artifacts)
        promote_chain(ledger, store, 1)
        first_candidate = ledger.version(MODEL, 1).candidate
        number = register_sample(ledger, store, salt=2, reference=first_candidate)
        self.challenger = ledger.version(MODEL, number).candidate
        settings = RolloutSettings(strategy="ab", shares=(0.5,), lease_s=600)
        ledger.start_rollout(MODEL, number, settings, actor="ada", reason="try it")
        models = LedgerModels(ledger, MODEL, store)
        networks: Any = (RaisingNetwork(),)

        def load(digest: str) -> Any:
            found = models.load(digest)
            if digest != self.challenger:
                return found
            return type(found)(
                version=found.version,
                candidate=found.candidate,
                contract=found.contract,
                target=found.target,
                networks=networks,
            )

        rollback = LedgerRollback(ledger, MODEL, store, clock=utc_now, cooldown_s=600)
        self.ledger = ledger
        self.home = home
        self.serving: Serving = open_serving(
            MODEL,
            LedgerTrafficSplit(ledger, MODEL),
            load,
            settings=quick_settings(poll_interval_s=0.5, registry_timeout_s=5.0),
            tokens=Tokens.of(serve=SECRET, hook=HOOK_SECRET),
            webhook=RollbackWebhook(rollback=rollback),
            clock=utc_now,
            log=json_log(io.StringIO()),
            reports=None,
            isolate=None,
        )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")


@pytest.fixture
def rollout(home: Home) -> Iterator[tuple[FailingRollout, str, str]]:
    """A failing rollout, the address of its server, and the address of the pipelines' metrics."""
    with RolloutLedger.open(home.registry_url, clock=utc_now) as ledger:
        failing = FailingRollout(home, ledger)
        ports: list[int] = []
        ready = threading.Event()

        def on_ready(port: int) -> None:
            ports.append(port)
            ready.set()

        serving = threading.Thread(
            target=serve,
            args=(failing.serving,),
            kwargs={"host": "127.0.0.1", "port": 0, "on_ready": on_ready},
        )
        serving.start()
        home.reports.mkdir()
        reports = ReportServer(listen(0), home.reports, metrics_reader(home))
        reporting = threading.Thread(target=reports.serve_forever, args=(0.05,))
        reporting.start()
        try:
            assert ready.wait(20)
            yield failing, f"127.0.0.1:{ports[0]}", f"127.0.0.1:{reports.server_address[1]}"
        finally:
            failing.serving.drain()
            serving.join(20)
            reports.shutdown()
            reporting.join()
            reports.server_close()


def copy_configuration(folder: Path, *, serving: str, pipelines: str, alertmanager: str) -> Path:
    """Copy the files of deploy/ with the addresses of this test and a scrape interval of 1 s."""
    shutil.copytree(DEPLOY / "prometheus", folder)
    (folder / "serve-token").write_text(SECRET)
    (folder / "hook-token").write_text(HOOK_SECRET)
    text = (folder / "prometheus.yml").read_text()
    for shipped, here in (
        ("127.0.0.1:8000", serving),
        ("127.0.0.1:3001", pipelines),
        ("127.0.0.1:9093", alertmanager),
    ):
        assert shipped in text
        text = text.replace(shipped, here)
    text = re.sub(r"(scrape|evaluation)_interval: \d+s", r"\1_interval: 1s", text)
    (folder / "prometheus.yml").write_text(text)
    text = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text()
    assert "127.0.0.1:8000" in text
    (folder / "alertmanager.yml").write_text(text.replace("127.0.0.1:8000", serving))
    return folder


def predict(address: str, times: int) -> list[int]:
    headers = {"authorization": f"Bearer {SECRET}"}
    with httpx.Client(base_url=f"http://{address}", headers=headers) as client:
        return [client.post("/predict", json=WINDOW).status_code for _ in range(times)]


def test_prometheus_files_are_valid_and_their_rule_tests_pass(tmp_path: Path) -> None:
    promtool = require("promtool", "prometheus")
    folder = copy_configuration(tmp_path / "p", serving="a:1", pipelines="b:1", alertmanager="c:1")
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    tested = yaml.safe_load((folder / "alerts_test.yml").read_text())["tests"]
    text = json.dumps(tested)
    rollback_alerts = [r["alert"] for r in rules() if r.get("labels", {}).get("sluice_action")]
    assert len(rollback_alerts) == 4
    assert [name for name in rollback_alerts if name not in text] == []


def test_every_alert_has_severity_summary_and_action() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
            assert rule["annotations"]["summary"], rule["alert"]
            assert rule["annotations"]["do"], rule["alert"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_panels_are_complete_and_do_not_overlap(path: Path) -> None:
    board = json.loads(path.read_text())
    panels = board["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    used_cells = set()
    for panel in panels:
        assert panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & used_cells, f"{panel['title']} overlaps another panel"
        used_cells |= cells
    assert {v["name"] for v in board["templating"]["list"]} == {"datasource", "model"}


def test_expressions_use_only_exported_metrics(
    rollout: tuple[FailingRollout, str, str],
) -> None:
    _, serving, pipelines = rollout
    exported = httpx.get(
        f"http://{serving}/metrics", headers={"authorization": f"Bearer {SECRET}"}
    ).text
    exported += httpx.get(f"http://{pipelines}/metrics").text
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exported, re.M))
    known = set(families) | {f"{n}_bucket" for n, kind in families.items() if kind == "histogram"}
    known |= {rule["record"] for rule in rules() if "record" in rule}
    expressions = [rule["expr"] for rule in rules()] + dashboard_expressions()
    named = {
        name
        for expression in expressions
        for name in re.findall(r"\bsluice[_:][a-z0-9_:]+", re.sub(r'"[^"]*"', "", expression))
    }

    assert len(named) > 25
    assert sorted(named - known) == []


@pytest.mark.slow
def test_failing_challenger_is_rolled_back_by_its_alert(
    rollout: tuple[FailingRollout, str, str], tmp_path: Path
) -> None:
    """Prometheus scrapes, its rule fires, Alertmanager calls the webhook, the challenger stops."""
    failing, serving, pipelines = rollout
    require("alertmanager", "prometheus-alertmanager")
    raise_alert(
        Alert(
            key="drift/1",
            kind="drift",
            what="Column a moved.",
            why="p = 1e-6.",
            do="Retrain.",
            severity="warning",
            model=MODEL,
            at=utc_now(),
        ),
        home=failing.home,
        environ={},
    )
    folder = copy_configuration(
        tmp_path / "p", serving=serving, pipelines=pipelines, alertmanager="127.0.0.1:1"
    )
    with alertmanager(folder) as alerts:
        text = (folder / "prometheus.yml").read_text()
        (folder / "prometheus.yml").write_text(
            text.replace('127.0.0.1:1"', f'127.0.0.1:{alerts.base_url.port}"')
        )
        with prometheus(folder) as client, ThreadPoolExecutor(1) as pool:
            wait_for(lambda: len(query_series(client, "up == 1")) == 2, seconds=20)
            load = pool.submit(predict, serving, 120)
            firing_alert = 'ALERTS{alertname="SluiceChallengerErrors",alertstate="firing"}'
            wait_for(lambda: query_series(client, firing_alert), seconds=30)
            started = time.monotonic()
            wait_for(lambda: failing.serving.router.table.challenger is None, seconds=10)
            duration_s = time.monotonic() - started
            statuses = load.result()

            for expression in [rule["expr"] for rule in rules()] + dashboard_expressions():
                query_series(client, expression)
            wait_for(
                lambda: query_series(client, 'sluice_rollout_phase{phase="rolled_back"} == 1'),
                seconds=10,
            )
            drift = query_series(client, 'ALERTS{alertname="SluiceDriftFound"}')
            down = query_series(client, 'ALERTS{alertname="SluiceServerNotReady"}')

    assert duration_s <= 2, duration_s
    assert set(statuses) == {200}
    assert [series["metric"]["model"] for series in drift] == [MODEL]
    assert down == []
    ended = failing.ledger.rollout(MODEL)
    assert ended is not None
    last = failing.ledger.rollout_transitions(ended.id)[-1]
    assert (last.outcome, last.actor, last.rollout.share) == ("abort", "alertmanager", 0)
    assert "of its requests, over 5 percentage points more than production. [alert " in last.reason
