"""Serving: the app that answers, the router in it, and what it counts (ROLL-1, ROLL-2).

A request goes through ``front`` (size, trace, log), the limits, the contract, the router, an arm.
"""
