"""Latency and throughput of the server, beside a minimal app with the same model."""
