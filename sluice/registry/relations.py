"""Checking that the registry's tables are plain tables, so that each read of a row tells the same.

A view in the place of a table may answer the check with one row and who acts on it with another.
Rewrite rules, row policies and child tables of PostgreSQL change as well what a statement means.
``deploy/postgres/roles.sql`` has policies for one table, where everybody still reads every row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from sluice.registry.records import Finding
from sluice.registry.tables import metadata

_CATALOG = """
SELECT c.relname, c.relkind = 'r' AS is_table,
    EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND c.relkind = 'r') AS has_rules,
    c.relrowsecurity AND (c.relname <> 'sluice_rollout_notes' OR NOT EXISTS (
        SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd = 'r'
            AND p.polroles = '{0}' AND pg_get_expr(p.polqual, p.polrelid) = 'true'
    ) OR EXISTS (
        SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND NOT p.polpermissive
    )) AS has_policies,
    EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhparent, i.inhrelid)) AS has_family
FROM pg_class c WHERE pg_table_is_visible(c.oid) AND c.relname IN :names ORDER BY c.relname
"""
_MASTER = """
SELECT lower(name) AS relname, type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' AS is_table
FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) IN :names ORDER BY 1
"""
_QUERIES = {"postgresql": _CATALOG, "sqlite": _MASTER}
_PROBLEMS = {
    "has_rules": "has rewrite rules",
    "has_policies": "shows some rows to some users only (row level security)",
    "has_family": "inherits rows, or is inherited from",
}


def load(connection: Connection) -> Sequence[Row[Any]]:
    """Return what the database says of each relation that has the name of a table."""
    query = sa.text(_QUERIES[connection.dialect.name])
    query = query.bindparams(sa.bindparam("names", expanding=True))
    return connection.execute(query, {"names": list(metadata.tables)}).all()


def check(connection: Connection) -> Iterator[Finding]:
    """Yield a finding for each table that is none, or that is more than one.

    Cost:
        One query.
    """
    for row in load(connection):
        values = row._mapping
        problems = [] if values["is_table"] else ["is no table of its own"]
        problems += [said for name, said in _PROBLEMS.items() if values.get(name)]
        if problems:
            yield Finding(
                model="",
                version=None,
                problem="table",
                what=f"{row.relname} {' and '.join(problems)}, so what is read of it and what is "
                "written need not be the same.",
                fix="Find out who changed it and why, and restore the database from a backup.",
            )
