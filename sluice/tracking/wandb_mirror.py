"""Mirrors finished runs to Weights & Biases.

The mirror runs wandb in a separate process with a time limit, so that the output, side effects and
failures of wandb do not affect the caller. Sluice never reads data from Weights & Biases. The
default mode is offline: wandb writes files into one folder, and the user sends them with
``wandb sync``.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field

from sluice.base.errors import StorageError
from sluice.base.files import make_folder, write_atomic
from sluice.base.redaction import redact_data
from sluice.base.settings import Record
from sluice.tracking.client_process import ClientFailed, run_client_process
from sluice.tracking.settings import Mode, TrackingSettings
from sluice.tracking.tracked_run import TrackedRun
from sluice.tracking.wandb_login import with_wandb_login

_INHERITED_VARIABLES = ("WANDB_API_KEY", "WANDB_BASE_URL")
"""Environment variables of wandb that its process inherits; all other variables of wandb are
removed."""
QUIET_SETTINGS: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "quiet": True,
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}
"""Settings of wandb that disable its output and the collection of data about this machine."""


class MirrorResult(Record):
    """Result of mirroring a run. A failure is reported in the result, and never raised."""

    ok: bool
    mode: Mode
    run_id: str
    folder: str | None = Field(description="Folder of the run; None if it was not mirrored.")
    reason: str = Field(description="What was mirrored, or why nothing was mirrored.")
    seconds: float = Field(description="Wall time [s].")


def mirror(
    run: TrackedRun, settings: TrackingSettings, *, folder: Path, environ: Mapping[str, str]
) -> MirrorResult:
    """Mirror a run to Weights & Biases; a run with the same content is mirrored only once.

    Args:
        run: The run.
        settings: Destination and time limit.
        folder: Folder for all files of wandb: runs, staged artifacts, caches, configuration.
        environ: Environment variables of the caller. In online mode the key is read from
            WANDB_API_KEY, or else from ``wandb login``.

    Returns:
        The result, with ``ok=False`` and the reason if wandb failed or took too long.

    Cost:
        About 2 s in offline mode, in another process.
    """
    start = time.monotonic()

    def result(ok: bool, reason: str, run_folder: Path | None = None) -> MirrorResult:
        return MirrorResult(
            ok=ok,
            mode=settings.mode,
            run_id=run.run_id,
            folder=str(run_folder) if run_folder else None,
            reason=reason,
            seconds=time.monotonic() - start,
        )

    if settings.mode == "off":
        return result(True, "Tracking is off.")
    if settings.mode == "online":
        online_environ = with_wandb_login(environ)
        if online_environ is None:
            return result(
                False,
                "Not mirrored: tracking.mode is online and WANDB_API_KEY is not set. Set it, run "
                "'wandb login', or set tracking.mode to offline.",
            )
        environ = online_environ
    done_path = folder / "mirrored" / f"{settings.project}-{run.run_id}-{settings.mode}.json"
    mirrored_folder = _mirrored_folder(done_path)
    if mirrored_folder is not None:
        return result(True, "This run was mirrored already.", mirrored_folder)
    try:
        make_folder(folder)
        run_folder = _mirror_in_subprocess(run, settings, folder.resolve(), environ)
        write_atomic(done_path, json.dumps({"folder": str(run_folder)}).encode())
    except (ClientFailed, OSError, StorageError) as error:
        # Delete an incomplete offline run, because a later sync would upload it.
        for incomplete_run in (folder / "wandb").glob(f"offline-run-*-{run.run_id}"):
            shutil.rmtree(incomplete_run, ignore_errors=True)
        return result(False, f"Not mirrored to Weights & Biases: {error}")
    sync_hint = f" Send it with: wandb sync {run_folder}" if settings.mode == "offline" else ""
    return result(True, f"Mirrored to Weights & Biases ({settings.mode}).{sync_hint}", run_folder)


def _mirrored_folder(done_path: Path) -> Path | None:
    """Return the folder of the run if it was mirrored already; otherwise None."""
    try:
        run_folder = Path(json.loads(done_path.read_text())["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run_folder if run_folder.is_dir() else None


def _mirror_in_subprocess(
    run: TrackedRun, settings: TrackingSettings, folder: Path, environ: Mapping[str, str]
) -> Path:
    """Log the run with wandb in a separate process, and return the folder of the run."""
    payload = {
        **redact_data(asdict(run)),
        "run_id": run.run_id,
        "scalars": [[s.name, s.epoch, s.value] for s in run.scalars],
        "tags": [*settings.tags, *run.tags],
        "group": settings.group or run.pipeline,
        "project": settings.project,
        "entity": settings.entity,
        "mode": settings.mode,
    }
    output = run_client_process(
        "sluice.tracking.wandb_mirror",
        payload,
        timeout_s=settings.timeout_s,
        folder=folder,
        environ=wandb_environment(folder, environ),
    )
    run_folder = Path(output["folder"])
    if not run_folder.is_relative_to(folder):  # wandb uses a temporary folder if it cannot write
        raise ClientFailed(f"wandb wrote to {run_folder}, because {folder} is not writable.")
    return run_folder


def system_metrics_settings(
    settings: TrackingSettings, *, pid: int | None = None
) -> dict[str, Any]:
    """Return the settings of wandb's collector of system metrics; {} if it is disabled.

    Args:
        settings: Settings with ``system_metrics``.
        pid: Process whose CPU and memory use is collected in addition to the use of the machine; by
            default the process that runs wandb.
    """
    if not settings.system_metrics:
        return {}
    # With x_disable_machine_info, wandb collects nothing even if x_disable_stats is False.
    collector_settings = {"x_disable_stats": False, "x_disable_machine_info": False}
    return collector_settings if pid is None else {**collector_settings, "x_stats_pid": pid}


def wandb_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that runs wandb, which writes only into ``folder``.

    Variables of wandb are removed, except the key and the server.
    """
    inherited_variables = {
        name: value
        for name, value in environ.items()
        if not name.startswith("WANDB_") or name in _INHERITED_VARIABLES
    }
    folder_variables = (
        "WANDB_DIR",
        "WANDB_DATA_DIR",
        "WANDB_CACHE_DIR",
        "WANDB_CONFIG_DIR",
        "WANDB_ARTIFACT_DIR",
    )
    return {
        **inherited_variables,
        **dict.fromkeys(folder_variables, str(folder)),
        "WANDB_ERROR_REPORTING": "false",
        # wandb must not read the user's netrc file. In online mode, ``with_wandb_login`` has
        # already put the key into WANDB_API_KEY.
        "NETRC": os.devnull,
    }


def _log_run(payload: Mapping[str, Any]) -> str:
    """Log one run with wandb and return its folder; called in the separate process."""
    import wandb

    wandb_settings = wandb.Settings(mode=payload["mode"], **QUIET_SETTINGS)
    with wandb.init(
        project=payload["project"],
        entity=payload["entity"],
        id=payload["run_id"],
        name=payload["name"],
        group=payload["group"],
        tags=payload["tags"],
        notes=payload["notes"] or None,
        config={**payload["config"], **payload["labels"], "candidate": payload["candidate"]},
        settings=wandb_settings,
    ) as wandb_run:
        wandb_run.define_metric("epoch")
        for split in ("train", "val", "test"):
            wandb_run.define_metric(f"{split}/*", step_metric="epoch")
        values_by_epoch: dict[int, dict[str, float]] = {}
        for name, epoch, value in payload["scalars"]:
            if epoch is None:
                wandb_run.summary[name] = value
            else:
                values_by_epoch.setdefault(epoch, {})[name] = value
        for epoch, values in sorted(values_by_epoch.items()):
            wandb_run.log({"epoch": epoch, **values})
        artifact = wandb.Artifact(
            f"candidate-{payload['pipeline']}",
            type="candidate",
            metadata={"candidate": payload["candidate"]},
        )
        with artifact.new_file("manifest.json") as file:
            json.dump(payload["manifest"], file, indent=2, sort_keys=True)
        wandb_run.log_artifact(artifact, aliases=[payload["candidate"][:12], *payload["aliases"]])
        return str(Path(wandb_run.dir).parent)


if __name__ == "__main__":
    print(json.dumps({"folder": _log_run(json.load(sys.stdin))}))
