"""Runs jobs in processes on this machine or on a Ray cluster. The adapter package to Ray."""
