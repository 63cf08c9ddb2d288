"""The resources every pipeline is run with."""

from sluice.assets.records import RecordIOManager
from sluice.assets.resources import Progress, State, silent
from sluice.home import Home


def resources(home: Home, progress: Progress = silent) -> dict[str, object]:
    """Return the resources for one state folder."""
    return {
        "state": State.at(home),
        "io_manager": RecordIOManager(root=str(home.records)),
        "progress": progress,
    }
