"""Rows that a network reads batch by batch, instead of one tensor in memory.

``protocol`` defines what a row source is; every other module is one source.
"""
