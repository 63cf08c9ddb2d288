"""Checks of every row source."""

from tests.support.row_sources import assert_source as assert_source
from tests.support.row_sources import spawned as spawned
