"""The chapters of the tutorial, run as printed in a new folder."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of

TUTORIAL = ROOT / "docs" / "tutorial"


def runnable_blocks(name: str) -> list[Block]:
    return [block for block in blocks_of(TUTORIAL / name) if not block.reason]


def read_request_body() -> str:
    """Return the request body of the curl command in the second chapter."""
    (block,) = [b for b in blocks_of(TUTORIAL / "2-serve-it.md") if "curl" in b.text]
    words = shlex.split(block.text)
    return words[words.index("-d") + 1]


def run_commands(block: Block, folder: Path) -> None:
    """Run the lines of a block with the Sluice and the Python of this test."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    programs = {"sluice": [sys.executable, "-m", "sluice"], "python": [sys.executable]}
    for line in block.text.splitlines():
        program, *rest = shlex.split(line, comments=True)
        command = [*programs.get(program, [program]), *rest]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.exhaustive
def test_tutorial_promotes_a_model_and_rolls_it_back(
    tmp_path: Path,
) -> None:
    for block in runnable_blocks("1-first-verdict.md"):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.kind == "bash":
            run_commands(block, tmp_path)
    assert "version 1 production" in run_client_of_second_chapter(tmp_path)
    train = Block(page="3", line=0, kind="bash", text="", reason="")
    (better,) = [b for b in runnable_blocks("3-a-canary.md") if "sluice run" in b.text]
    run_commands(train._replace(text=better.text), tmp_path)
    assert [v["state"] for v in list_versions(tmp_path)] == ["archived", "production"]

    for block in runnable_blocks("4-roll-back.md"):
        run_commands(block, tmp_path)

    assert list_versions(tmp_path)[0]["state"] == "production"


def run_client_of_second_chapter(folder: Path) -> str:
    """Serve the model, run the client of the second chapter, and return the client's output."""
    (program,) = [block for block in runnable_blocks("2-serve-it.md") if block.file == "traffic.py"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    serve = [sys.executable, "-m", "sluice", "serve", "my_model.yaml", "--port", "0"]
    with subprocess.Popen(
        serve, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            header = {"Content-Type": "application/json"}
            body = read_request_body().encode()
            with urlopen(Request(f"{url}/predict", body, header)) as response:
                assert 80 < json.load(response)["outputs"][0][0] < 160  # a day in December
            (folder / program.file).write_text(program.text.replace("http://127.0.0.1:8000", url))
            done = subprocess.run(
                [sys.executable, program.file, "50"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            server.terminate()
    assert done.returncode == 0, done.stderr
    return done.stdout


def list_versions(folder: Path) -> list[dict[str, str]]:
    """Return the versions of the tutorial's model, oldest first."""
    command = [sys.executable, "-m", "sluice", "registry", "list", "my_model", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    return sorted(found, key=lambda version: version["number"])
