"""A fake server of Weights & Biases, which stores the data of its client in memory.

It implements the client's requests for runs, metrics, files and artifacts. Like the real server, it
rejects requests without the expected key.
"""

import base64
import contextlib
import gzip
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_ENTITY = "me"


@dataclass
class ServedRun:
    """Data of one run."""

    project: str
    name: str = ""
    group: str = ""
    job: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    artifacts: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def history(self) -> dict[int, dict[str, Any]]:
        """Rows by step."""
        return {row["_step"]: row for row in self.rows}


class WandbServer:
    """Data and requests of the fake server that ``serve_wandb`` runs."""

    def __init__(self, key: str) -> None:
        self.key, self.url = key, ""
        self.runs: dict[str, ServedRun] = {}
        self.num_refused = 0
        self._changed = threading.Condition()
        self._artifacts: list[tuple[str, str]] = []  # run and name of each artifact, by its id

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables of a client that logs in to this server."""
        return {"WANDB_API_KEY": self.key, "WANDB_BASE_URL": self.url}

    def wait_for(self, run_id: str, *, step: int, timeout_s: float = 60.0) -> None:
        """Wait until a run has a row of the step.

        Raises:
            TimeoutError: The row did not arrive in time.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: run_id in self.runs and step in self.runs[run_id].history, timeout_s
            ):
                raise TimeoutError(f"No row of step {step} in {self.runs.get(run_id)}.")

    def query(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response to one GraphQL request."""
        with self._changed:
            for name, handler in (
                ("upsertBucket(", self._upsert),
                ("createRunFiles(", self._list_run_files),
                ("createArtifact(", self._create_artifact),
                ("createArtifactManifest(", self._create_manifest),
                ("createArtifactFiles(", self._list_artifact_files),
                ("commitArtifact(", lambda _: {"commitArtifact": {"artifact": {"id": "0"}}}),
                ("bucket(", self._resume),
                ("viewer ", lambda _: {"viewer": _VIEWER}),
                ("serverInfo ", lambda _: {"serverInfo": {"features": []}}),
            ):
                if name in query:
                    return handler(variables)
        return {"project": None}

    def stream(self, run_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Store rows, the summary and the exit code of a run."""
        with self._changed:
            run = self.runs[run_id]
            for name, chunk in body.get("files", {}).items():
                lines = [json.loads(line) for line in chunk["content"] if line.startswith("{")]
                if name == "wandb-history.jsonl":
                    run.rows[chunk["offset"] :] = lines
                elif name == "wandb-summary.json":
                    run.summary = lines[-1]
            if body.get("complete"):
                run.exit_code = body["exitcode"]
            self._changed.notify_all()
        return {"exitcode": None, "limits": {}}

    def store(self, path: str, content: bytes) -> None:
        """Store an uploaded file."""
        with self._changed:
            kind, number, name = path.strip("/").split("/", 2)
            if kind == "artifact":
                run_id, artifact = self._artifacts[int(number)]
                self.runs[run_id].artifacts[artifact][name] = content

    def _upsert(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        run = self.runs.setdefault(variables["name"], ServedRun(variables["project"]))
        run.exit_code = None
        for name, variable in _FIELDS.items():
            if variables.get(variable) is not None:
                setattr(run, name, variables[variable])
        run.tags = tuple(variables.get("tags") or run.tags)
        for key, item in json.loads(variables.get("config") or "{}").items():
            run.config[key] = item["value"]
        bucket = {
            "id": variables["name"],
            "name": variables["name"],
            "displayName": run.name,
            "description": run.notes,
            "config": variables.get("config"),
            "sweepName": None,
            "historyLineCount": len(run.rows),
            "project": {"id": "p", "name": run.project, "entity": {"id": "e", "name": _ENTITY}},
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": not run.rows}}

    def _resume(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables["name"])
        if run is None:
            return {"model": None}
        return {
            "model": {
                "id": "p",
                "name": run.project,
                "entity": {"id": "e", "name": _ENTITY},
                "bucket": {
                    "id": variables["name"],
                    "name": variables["name"],
                    "displayName": run.name,
                    "config": json.dumps({key: {"value": v} for key, v in run.config.items()}),
                    "summaryMetrics": json.dumps(run.summary),
                    "historyLineCount": len(run.rows),
                    "eventsLineCount": 0,
                    "logLineCount": 0,
                    "historyTail": json.dumps([json.dumps(row) for row in run.rows[-1:]]),
                    "eventsTail": "[]",
                    "tags": list(run.tags),
                    "wandbConfig": json.dumps({"t": 1}),
                },
            }
        }

    def _list_run_files(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/file/{variables['run']}/{name}"}
            for name in variables["files"]
        ]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def _create_artifact(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        request = variables["input"]
        number, name = len(self._artifacts), request["artifactCollectionName"]
        self._artifacts.append((request["runName"], name))
        self.runs[request["runName"]].artifacts[name] = {}
        artifact = {
            "id": str(number),
            "state": "PENDING",
            "artifactSequence": {"latestArtifact": None},
        }
        return {"createArtifact": {"artifact": artifact}}

    def _create_manifest(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        upload_url = f"{self.url}/artifact/{variables['artifactID']}/{variables['name']}"
        file = {"id": "f", "uploadUrl": upload_url, "uploadHeaders": []}
        manifest = {"id": variables["artifactID"], "file": file}
        return {"createArtifactManifest": {"artifactManifest": manifest}}

    def _list_artifact_files(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        edges = [
            {
                "node": {
                    "storagePath": file["name"],
                    "uploadUrl": f"{self.url}/artifact/{file['artifactID']}/{file['name']}",
                    "uploadHeaders": [],
                    "uploadMultipartUrls": None,
                    "artifact": {"id": file["artifactID"]},
                }
            }
            for file in variables["input"]["artifactFiles"]
        ]
        return {"createArtifactFiles": {"files": {"edges": edges}}}


_VIEWER = {
    "id": "e",
    "entity": _ENTITY,
    "username": _ENTITY,
    "email": "",
    "flags": "{}",
    "teams": {"edges": []},
}
_FIELDS = {"name": "displayName", "group": "groupName", "job": "jobType", "notes": "notes"}


@contextlib.contextmanager
def serve_wandb(key: str) -> Iterator[WandbServer]:
    """Serve on a free port of the loopback interface until the block ends."""
    state = WandbServer(key)
    login = "Basic " + base64.b64encode(f"api:{key}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

        def do_POST(self) -> None:
            body = self._body()
            if self.path.startswith("/sdk/"):  # telemetry of the client
                return self._respond(200, {})
            if self.headers.get("Authorization") != login:
                state.num_refused += 1
                return self._respond(401, {"errors": [{"message": "user is not logged in"}]})
            request = json.loads(body)
            if self.path == "/graphql":
                data = state.query(request["query"], request.get("variables") or {})
                return self._respond(200, {"data": data})
            return self._respond(200, state.stream(self.path.split("/")[-2], request))

        def do_PUT(self) -> None:
            state.store(self.path, self._body())
            self._respond(200, {})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

        def _respond(self, status: int, content: Mapping[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Ignore clients that close their connection."""

    with Server(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
