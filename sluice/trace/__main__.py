"""``python -m sluice.trace``: the tracer where nothing but torch and pydantic is installed."""

import argparse
import os
import sys
from pathlib import Path

from sluice.errors import SluiceError
from sluice.trace.command import run_traced


def main(arguments: list[str]) -> int:
    """Run one traced program and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.trace", usage="%(prog)s [--out DIR] -- python train.py ..."
    )
    parser.add_argument("--out", type=Path, help="folder of the traces")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    try:
        return run_traced(command, out=given.out, environ=os.environ, cwd=Path.cwd())
    except SluiceError as error:
        print(f"error: {error.what}\ndo:    {error.fix}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
