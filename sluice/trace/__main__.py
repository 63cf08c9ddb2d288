"""``python -m sluice.trace``: the tracer where nothing but torch and pydantic is installed."""

import argparse
import os
import sys
from pathlib import Path

from sluice.base.errors import SluiceError
from sluice.trace.command import run_traced
from sluice.trace.settings import TraceSettings

_STOP = (
    "end the program after so many losses in a row that are not finite; 0 for never; a state to go "
    "on from is kept at steps 1, 2, 4, 8 and so on, then every 100"
)
_SKIP = "leave out steps on the gradients of a loss that is not finite"


def main(arguments: list[str]) -> int:
    """Run one traced program and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.trace", usage="%(prog)s [--out DIR] -- python train.py ..."
    )
    parser.add_argument("--out", type=Path, help="folder of the traces")
    parser.add_argument("--stop-after", type=int, default=0, metavar="N", help=_STOP)
    parser.add_argument("--skip-poisoned", action="store_true", help=_SKIP)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    try:
        settings = TraceSettings.parse(
            {"stop_after": given.stop_after, "skip_poisoned": given.skip_poisoned},
            where="the command line",
        )
        return run_traced(
            command, out=given.out, settings=settings, environ=os.environ, cwd=Path.cwd()
        )
    except SluiceError as error:
        print(f"error: {error.what}\ndo:    {error.fix}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
