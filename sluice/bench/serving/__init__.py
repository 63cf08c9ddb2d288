"""Latency and throughput of the server, compared with a minimal app with the same model."""
