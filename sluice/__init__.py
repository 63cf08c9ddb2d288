"""Sluice: a gated line from data to a served PyTorch model."""
