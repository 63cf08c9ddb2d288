"""Checks that the registry's tables are ordinary tables, so that every reader gets the same rows.

A view in place of a table could return other rows to the verification than to the readers of a
version. In PostgreSQL, rewrite rules, row policies and inheritance can have the same effect.
``deploy/postgres/roles.sql`` defines policies for one table; these do not restrict reads and are
allowed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from sluice.registry.records import RegistryFinding
from sluice.registry.tables import metadata

_POSTGRESQL_CATALOG = """
SELECT c.relname, c.relkind = 'r' AS is_table,
    EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND c.relkind = 'r') AS has_rules,
    c.relrowsecurity AND (c.relname <> 'sluice_rollout_notes' OR NOT EXISTS (
        SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd = 'r'
            AND p.polroles = '{0}' AND pg_get_expr(p.polqual, p.polrelid) = 'true'
    ) OR EXISTS (
        SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND NOT p.polpermissive
    )) AS has_policies,
    EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhparent, i.inhrelid)) AS is_inherited
FROM pg_class c WHERE pg_table_is_visible(c.oid) AND c.relname IN :names ORDER BY c.relname
"""
_SQLITE_CATALOG = """
SELECT lower(name) AS relname, type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' AS is_table
FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) IN :names ORDER BY 1
"""
_QUERIES = {"postgresql": _POSTGRESQL_CATALOG, "sqlite": _SQLITE_CATALOG}
_PROBLEM_BY_COLUMN = {
    "has_rules": "has rewrite rules",
    "has_policies": "shows some rows to some users only (row level security)",
    "is_inherited": "takes part in table inheritance",
}


def load_relations(connection: Connection) -> Sequence[Row[Any]]:
    """Return the catalog entry of each table or view that has the name of a registry table."""
    query = sa.text(_QUERIES[connection.dialect.name])
    query = query.bindparams(sa.bindparam("names", expanding=True))
    return connection.execute(query, {"names": list(metadata.tables)}).all()


def check(connection: Connection) -> Iterator[RegistryFinding]:
    """Yield a finding for each table of the registry that is not an ordinary table.

    Cost:
        One query.
    """
    for row in load_relations(connection):
        values = row._mapping
        problems = [] if values["is_table"] else ["is not an ordinary table"]
        problems += [text for name, text in _PROBLEM_BY_COLUMN.items() if values.get(name)]
        if problems:
            yield RegistryFinding(
                model="",
                version=None,
                problem="table",
                what=f"{row.relname} {' and '.join(problems)}, so reads may not return the rows "
                "that were written.",
                fix="Find out who changed the table and why, and restore the database from a "
                "backup.",
            )
