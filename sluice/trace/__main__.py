"""``python -m sluice.trace``: runs the tracer in environments that have only torch and pydantic."""

import argparse
import os
import sys
from pathlib import Path

from sluice.base.errors import SluiceError
from sluice.trace.command import run_traced
from sluice.trace.settings import TraceSettings

_STOP_HELP = (
    "after this number of consecutive non-finite losses, save the last good state and stop the "
    "program; 0 for never; the state is copied after 0, 1, 2, 4, 8, ... steps, then every 100 steps"
)
_SKIP_HELP = "skip optimizer steps that would use the gradients of a non-finite loss"


def main(arguments: list[str]) -> int:
    """Run one program with the tracer; return its exit code, or the exit code of a Sluice error."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice.trace", usage="%(prog)s [options] -- python train.py ..."
    )
    parser.add_argument("--out", type=Path, help="folder of the traces; created if necessary")
    parser.add_argument("--stop-after", type=int, default=0, metavar="N", help=_STOP_HELP)
    parser.add_argument("--skip-nonfinite", action="store_true", help=_SKIP_HELP)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        settings = TraceSettings.parse(
            {"stop_after": options.stop_after, "skip_nonfinite": options.skip_nonfinite},
            where="the command line",
        )
        return run_traced(
            command, out=options.out, settings=settings, environ=os.environ, cwd=Path.cwd()
        )
    except SluiceError as error:
        print(f"error: {error.what}\ndo:    {error.fix}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
