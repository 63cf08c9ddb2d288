"""``python -m sluice`` is ``sluice``."""

import os
import sys

if __name__ == "__main__":
    # With -m Python searches the working folder first: a random.py there would be taken for the
    # standard one. What a pipeline names is found there all the same: see sluice.base.imports.
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    from sluice.cli.app import main

    main()
