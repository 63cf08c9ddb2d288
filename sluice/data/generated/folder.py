"""Folders of generated files."""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from sluice.base.files import make_folder, storage_error
from sluice.base.home import Home


def generate_once(name: str, write: Callable[[Path], object]) -> Path:
    """Return the folder ``SLUICE_HOME/generated/NAME``, and write it if it does not exist.

    The folder is renamed to its final name when it is complete. So an interrupted process leaves no
    folder of that name. If several processes write it at the same time, the first folder is kept.

    Args:
        name: Name that contains every setting which determines the files.
        write: Function that creates a new folder with the files.

    Raises:
        StorageError: The folder cannot be written.
    """
    parent = Home.from_environment(os.environ, cwd=Path.cwd()).generated
    folder = parent / name
    if folder.exists():
        return folder
    temporary = parent / f".{name}.{uuid.uuid4().hex}"
    try:
        make_folder(parent)
        write(temporary)
        os.rename(temporary, folder)
    except OSError as error:
        if not folder.exists():  # otherwise another process has just written it
            raise storage_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
