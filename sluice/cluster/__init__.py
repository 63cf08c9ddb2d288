"""Execution backends: processes on this machine, or a Ray cluster. The only package that uses
Ray."""
