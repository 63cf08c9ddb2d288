"""A client that ends without a result is reported like any other failure of the client."""

import os
from pathlib import Path

import pytest

from sluice.tracking.client_process import ClientFailed, run_client_process


@pytest.mark.parametrize("code", ["raise SystemExit", "print('log line')"])
def test_client_without_a_result_fails(code: str, tmp_path: Path) -> None:
    (tmp_path / "ended_client.py").write_text(code)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}

    with pytest.raises(ClientFailed, match="ended without a result"):
        run_client_process("ended_client", {}, timeout_s=60, folder=tmp_path, environ=environ)


def test_result_is_the_last_printed_line(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("print('log line'); print('[1, 2]')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}

    result = run_client_process("client", {}, timeout_s=60, folder=tmp_path, environ=environ)

    assert result == [1, 2]
