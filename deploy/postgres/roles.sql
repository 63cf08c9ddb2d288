-- Roles for a registry in PostgreSQL. Run it as the owner of the registry's tables, once they are
-- there, and again after an upgrade that adds tables; it may be repeated:
--
--   psql "$SLUICE_REGISTRY_URL" -v ON_ERROR_STOP=1 -f deploy/postgres/roles.sql
--
-- The owner makes and migrates tables; nothing that runs every day connects as the owner.
-- sluice_promoter is for pipelines, the command line, and a server with an Alertmanager hook.
-- sluice_server is for other servers: they read, and write what they observed and, once for a model,
-- the secret that places its users.
-- Then make a login for each person or service:
--
--   CREATE ROLE serving LOGIN PASSWORD '...' IN ROLE sluice_server;
--
-- The owner needs the right to make roles (CREATEROLE) the first time.

DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sluice_server') THEN
    CREATE ROLE sluice_server NOLOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sluice_promoter') THEN
    CREATE ROLE sluice_promoter NOLOGIN;
  END IF;
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO sluice_server, sluice_promoter', current_schema());
  -- Everybody could make tables in the schema "public" before PostgreSQL 15.
  EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
END
$$;

-- Both read everything.
GRANT SELECT ON
  sluice_schema_version, sluice_models, sluice_versions, sluice_receipts, sluice_recordings,
  sluice_version_receipts, sluice_decisions, sluice_pointers, sluice_history,
  sluice_imported_receipts, sluice_own_lineages, sluice_rollouts, sluice_rollout_transitions,
  sluice_rollout_heads, sluice_server_states, sluice_arm_counts, sluice_samples,
  sluice_rollout_notes, sluice_log, sluice_log_head, sluice_signatures, sluice_refusals,
  sluice_deliveries
TO sluice_server, sluice_promoter;

-- Both write observations; old samples go.
GRANT INSERT, UPDATE ON sluice_server_states, sluice_arm_counts TO sluice_server, sluice_promoter;
GRANT INSERT, DELETE ON sluice_samples TO sluice_server, sluice_promoter;
GRANT USAGE ON SEQUENCE sluice_samples_id_seq TO sluice_server, sluice_promoter;

-- Of the notes, a server writes only a model's first secret. The others are verdicts that a rollout
-- goes by. It gives no id: the first secret counts, and none may come before it.
GRANT INSERT (rollout, kind, at, payload) ON sluice_rollout_notes TO sluice_server;
GRANT USAGE ON SEQUENCE sluice_rollout_notes_id_seq TO sluice_server, sluice_promoter;
ALTER TABLE sluice_rollout_notes ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS sluice_read ON sluice_rollout_notes;
DROP POLICY IF EXISTS sluice_server_writes ON sluice_rollout_notes;
DROP POLICY IF EXISTS sluice_promoter_writes ON sluice_rollout_notes;
CREATE POLICY sluice_read ON sluice_rollout_notes FOR SELECT USING (true);
CREATE POLICY sluice_server_writes ON sluice_rollout_notes
  FOR INSERT TO sluice_server WITH CHECK (kind = 'secret');
CREATE POLICY sluice_promoter_writes ON sluice_rollout_notes
  FOR INSERT TO sluice_promoter WITH CHECK (true);

-- The promoter adds to what is append-only, and moves the pointers and heads.
GRANT INSERT ON
  sluice_models, sluice_versions, sluice_receipts, sluice_recordings, sluice_version_receipts,
  sluice_decisions, sluice_history, sluice_imported_receipts, sluice_own_lineages,
  sluice_rollouts, sluice_rollout_transitions, sluice_log, sluice_signatures, sluice_refusals,
  sluice_pointers, sluice_rollout_heads, sluice_rollout_notes, sluice_deliveries
TO sluice_promoter;
GRANT UPDATE ON sluice_pointers, sluice_rollout_heads, sluice_log_head TO sluice_promoter;
-- To lock a model's row (SELECT ... FOR UPDATE); its trigger refuses every change.
GRANT UPDATE (name) ON sluice_models TO sluice_promoter;
GRANT USAGE ON SEQUENCE
  sluice_recordings_id_seq, sluice_version_receipts_id_seq, sluice_decisions_id_seq,
  sluice_history_id_seq, sluice_imported_receipts_id_seq, sluice_refusals_id_seq
TO sluice_promoter;
