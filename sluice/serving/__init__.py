"""Model serving: the HTTP app, its router, and the counts of both arms.

A request passes the middleware (host, size, trace id, log), the limits, the input contract, the
router and an arm.
"""
