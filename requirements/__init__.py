"""Locks, licences, bill of materials and audit of the dependencies; not installed."""
