"""Sluice: a gated line from data to a served PyTorch model."""

__version__ = "0.1.0"
