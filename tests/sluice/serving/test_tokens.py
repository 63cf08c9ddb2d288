"""Named tokens have scopes, are read from a file and can be rotated while a server runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.base.errors import SettingsError, SluiceError, StorageError
from sluice.base.secret_files import read_secret_file
from sluice.cli.app import run_command
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.http_errors import Forbidden, Unauthorized
from sluice.serving.token_file import TokenFile, TokenFileWatch
from sluice.serving.tokens import SCOPES, Scope, Tokens, digest_token
from tests.sluice.serving.serving_samples import (
    SECRET,
    LinearNetwork,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

ROUTES: dict[str, Scope] = {
    "/predict": "predict",
    "/model": "predict",
    "/metrics": "metrics",
    "/rollout": "admin",
    "/problems": "admin",
}


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", f"bearer {SECRET} ", f"Basic {SECRET}", "Bearer \udcff", SECRET]
)
def test_a_missing_or_wrong_token_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        Tokens.of(serve=SECRET).require(header, "predict")


def test_the_scheme_is_case_insensitive_and_the_token_is_not() -> None:
    tokens = Tokens.of(serve=SECRET)

    for scheme in ("Bearer", "bearer", "BEARER"):
        assert tokens.require(f"{scheme} {SECRET}", "predict") == "serve"
    with pytest.raises(Unauthorized):
        tokens.require(f"Bearer {SECRET.swapcase()}", "predict")


def test_without_a_client_token_only_the_webhook_requires_a_token() -> None:
    tokens = Tokens.of(hook=SECRET)

    assert [tokens.require(None, scope) for scope in ("predict", "metrics", "admin")] == [""] * 3
    assert tokens.require(f"Bearer {SECRET}", "hook") == "hook"
    with pytest.raises(Unauthorized):
        tokens.require(None, "hook")


def test_the_error_states_what_is_wrong_with_a_token() -> None:
    tokens = Tokens.of(serve=SECRET)
    for header, problem in (
        (None, "has none"),
        (f"Basic {SECRET}", "has none"),
        (f"Bearer {SECRET.swapcase()}", "has an unknown token"),
    ):
        with pytest.raises(Unauthorized, match=f"a valid bearer token, but {problem}"):
            tokens.require(header, "predict")
    with pytest.raises(SettingsError, match="got 20 characters, not all of them printable ASCII"):
        Tokens.of(serve="\u00e9" * 20)


@pytest.mark.parametrize("secret", ["", "short", "tab\tin the middle of it", "\u00e9" * 20])
def test_an_invalid_token_is_refused(secret: str) -> None:
    with pytest.raises(SettingsError, match="at least 16 printable ASCII"):
        Tokens.of(serve=secret)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run ``sluice tokens`` and return what it prints."""
    status = run_command(["tokens", *map(str, arguments)])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out.strip()


def test_the_tokens_command_stores_only_the_digest_of_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens.json"
    shop = run(capsys, "add", "shop", "--file", path, "--scope", "predict", "--requests-per-s", 5)
    added = json.loads(
        run(capsys, "add", "ops", "--file", path, "--scope", "admin", "--scope", "hook", "--json")
    )
    tokens = TokenFile.read(path).to_tokens()

    assert path.stat().st_mode & 0o777 == 0o600
    assert shop not in path.read_text()
    assert len(shop) >= 43
    assert tokens.require(f"Bearer {shop}", "predict") == "shop"
    assert tokens.require(f"Bearer {added['token']}", "hook") == added["name"] == "ops"
    assert tokens.predict_grants[0].requests_per_s == 5
    with pytest.raises(Forbidden, match="scope 'hook', but the token of the request has predict"):
        tokens.require(f"Bearer {shop}", "hook")
    run(capsys, "remove", "shop", "--file", path)
    with pytest.raises(Unauthorized):
        TokenFile.read(path).to_tokens().require(f"Bearer {shop}", "predict")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "shop", "--scope", "predict"], "already has a token named 'shop'"),
        (["add", "new", "--scope", "everything"], "'everything'"),
        (["add", "new shop", "--scope", "predict"], "new shop"),
        (["add", "new", "--scope", "predict", "--requests-per-s", "0"], "greater than 0"),
        (["add", "new", "--scope", "predict", "--requests-per-s", "nan"], "finite"),
        (
            ["remove", "other"],
            "has no token 'other'. Its tokens: shop.\ndo:    Give the name of one",
        ),
    ],
)
def test_a_refused_command_does_not_change_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    path = tmp_path / "tokens.json"
    run(capsys, "add", "shop", "--file", path, "--scope", "predict")
    before = path.read_bytes()

    assert run_command(["tokens", *arguments, "--file", str(path)]) == 2
    assert message in capsys.readouterr().err
    assert path.read_bytes() == before


def test_removal_from_a_missing_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens.json"

    assert run_command(["tokens", "remove", "shop", "--file", str(path)]) == 2
    assert "Its tokens: none.\ndo:    Check the path of the file." in capsys.readouterr().err
    assert not path.exists()


def entry(secret: str = SECRET, **changes: Any) -> dict[str, Any]:
    return {"sha256": digest_token(secret).hex(), "scopes": ["predict"]} | changes


def write_tokens(path: Path, tokens: Any, mode: int = 0o600) -> Path:
    path.touch()
    path.chmod(mode)
    path.write_text(tokens if isinstance(tokens, str) else json.dumps({"tokens": tokens}))
    return path


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("{", "JSON"),
        ("[]", "token file"),
        ({"a": entry(sha256="abc")}, "sha256"),
        ({"a": entry(scopes=[])}, "scopes"),
        ({"a": entry(scopes=["root"])}, "scopes"),
        ({"a": entry(secret_text="x")}, "not a setting"),
        ({"a": entry(requests_per_s="5")}, "requests_per_s"),
        ({"a/b": entry()}, "a/b"),
        ({"a": entry(), "b": entry()}, "'a' and 'b' .* must be different"),
        ({f"n{number}": entry(f"{number:020}") for number in range(1001)}, "1000"),
    ],
)
def test_an_invalid_token_file_is_refused(tmp_path: Path, tokens: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TokenFile.read(write_tokens(tmp_path / "tokens.json", tokens))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o660, 0o601])
def test_a_secret_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_tokens(tmp_path / "token", SECRET, mode)

    with pytest.raises(SettingsError, match=rf"0600\), but has mode {mode:04o}.*chmod 600"):
        read_secret_file(path, what="token file")
    path.chmod(0o400)
    assert read_secret_file(path, what="token file") == SECRET.encode()


def make_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def make_large(path: Path) -> None:
    path.touch(mode=0o600)
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_fifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (make_large, "larger than the maximum of 1,048,576 bytes"),
        (lambda _: None, "No such file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    ],
)
def test_special_files_neither_hang_nor_fill_memory(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "token"
    make(path)

    with pytest.raises((SettingsError, StorageError), match=message):
        read_secret_file(path, what="token file")


@pytest.mark.parametrize("option", ["--token-file", "--hook-token-file", "--tokens"])
def test_the_server_refuses_every_token_file_that_others_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = write_tokens(tmp_path / "token", SECRET, 0o644)

    assert run_command(["serve", "sp500_volatility", option, str(path)]) == 2
    assert "must be readable only by its owner" in capsys.readouterr().err


def test_a_tokens_file_and_a_token_variable_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tokens(tmp_path / "tokens.json", {"shop": entry()})
    monkeypatch.setenv("SLUICE_SERVE_TOKEN", SECRET)

    assert run_command(["serve", "sp500_volatility", "--tokens", str(path)]) == 2
    assert "Give either --tokens or single tokens" in capsys.readouterr().err


def test_tokens_are_limited_to_their_scopes_and_rotate_while_the_server_runs(
    tmp_path: Path,
) -> None:
    secrets = {scope: f"{scope}-of-16-characters" for scope in SCOPES}
    entries = {scope: entry(secrets[scope], scopes=[scope]) for scope in SCOPES}
    path = write_tokens(tmp_path / "tokens.json", entries)
    watch = TokenFileWatch(path)
    model = deployed("one", 1, LinearNetwork(1.0))
    split = TrafficSplit(epoch=1, production=candidate("one"))
    with run_server(
        {model.candidate: model},
        split,
        settings=quick_settings(),
        tokens=watch.tokens,
        token_file=watch,
    ) as server:

        def status(route: str, secret: str) -> int:
            method = "POST" if route == "/predict" else "GET"
            headers = {"authorization": f"Bearer {secret}"}
            return server.client.request(method, route, headers=headers, json={}).status_code

        def problems() -> str:
            return " ".join(server.serving.split_sync.problems)

        statuses = {(r, s): status(r, secrets[s]) for r in ROUTES for s in SCOPES}
        logged_names = [
            line.get("token_name") for line in server.lines() if line.get("route") == "/metrics"
        ]

        # Add a new token, write an invalid file, then remove the old token.
        both = entries | {"next": entry("next-of-16-characters", scopes=["metrics"])}
        TokenFile.parse_json(json.dumps({"tokens": both}), where="test").write(path)
        server.wait_for(lambda: status("/metrics", "next-of-16-characters") == 200)
        old_beside_new = status("/metrics", secrets["metrics"])
        path.write_text("{")
        server.wait_for(lambda: "previous tokens stay" in problems())
        while_broken = status("/metrics", secrets["metrics"])
        write_tokens(path, {k: v for k, v in both.items() if k != "metrics"})
        server.wait_for(lambda: status("/metrics", secrets["metrics"]) == 401)
        server.wait_for(lambda: problems() == "")
        path.chmod(0o644)
        server.wait_for(lambda: "only by its owner" in problems())
        path.unlink()
        server.wait_for(lambda: "No such file" in problems())
        new_at_the_end = status("/metrics", "next-of-16-characters")

    assert {key: value != 403 for key, value in statuses.items()} == {
        (route, scope): scope == wanted for route, wanted in ROUTES.items() for scope in SCOPES
    }
    assert {s for (r, _), s in statuses.items() if r != "/predict"} == {200, 403}
    assert "metrics" in logged_names
    assert (old_beside_new, while_broken, new_at_the_end) == (200, 200, 200)


def test_a_watched_file_is_read_only_after_a_change(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.json", {"a": entry()})
    watch = TokenFileWatch(path)
    first = watch.refresh()
    write_tokens(path, {"b": entry()})
    second = watch.refresh()

    assert (first, watch.refresh()) == (None, None)
    assert second is not None
    assert [grant.name for grant in second.grants] == ["b"]
    path.write_text("{")
    for _ in range(2):
        with pytest.raises(SluiceError):
            watch.refresh()
    assert watch.tokens == second
