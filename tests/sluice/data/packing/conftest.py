"""Makes the checks that every row source must pass available as fixtures."""

from tests.support.row_sources import assert_source as assert_source
from tests.support.row_sources import spawned as spawned
