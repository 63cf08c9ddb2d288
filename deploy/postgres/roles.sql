-- Roles for a registry in PostgreSQL. Run this script as the owner of the registry's tables, once
-- they exist, and again after an upgrade that adds tables. The script may be repeated:
--
--   psql "$SLUICE_REGISTRY_URL" -v ON_ERROR_STOP=1 -f deploy/postgres/roles.sql
--
-- The owner creates and migrates tables. Nothing that runs regularly should connect as the owner.
-- sluice_promoter is for pipelines, the command line, and a server with an Alertmanager webhook.
-- sluice_server is for other servers. Such a server reads everything. It writes observations and,
-- once per model, the secret key that assigns users to arms.
-- After the script, create a login for each person or service:
--
--   CREATE ROLE serving LOGIN PASSWORD '...' IN ROLE sluice_server;
--
-- For the first run of the script, the owner needs the right to create roles (CREATEROLE).

DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sluice_server') THEN
    CREATE ROLE sluice_server NOLOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sluice_promoter') THEN
    CREATE ROLE sluice_promoter NOLOGIN;
  END IF;
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO sluice_server, sluice_promoter', current_schema());
  -- Before PostgreSQL 15, every role could create tables in the schema "public".
  EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
END
$$;

-- Both roles read everything.
GRANT SELECT ON
  sluice_schema_version, sluice_models, sluice_versions, sluice_receipts, sluice_recordings,
  sluice_version_receipts, sluice_decisions, sluice_pointers, sluice_history,
  sluice_imported_receipts, sluice_own_lineages, sluice_rollouts, sluice_rollout_transitions,
  sluice_rollout_heads, sluice_server_states, sluice_arm_counts, sluice_samples,
  sluice_rollout_notes, sluice_log, sluice_log_head, sluice_signatures, sluice_refusals,
  sluice_deliveries
TO sluice_server, sluice_promoter;

-- Both roles write observations, and delete old samples.
GRANT INSERT, UPDATE ON sluice_server_states, sluice_arm_counts TO sluice_server, sluice_promoter;
GRANT INSERT, DELETE ON sluice_samples TO sluice_server, sluice_promoter;
GRANT USAGE ON SEQUENCE sluice_samples_id_seq TO sluice_server, sluice_promoter;

-- A server may write only one kind of note: the secret of a model. Other notes are verdicts on which
-- a rollout depends. A server may not set the id of a note: the secret with the lowest id counts, so
-- a later secret must not get a lower id.
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

-- The promoter inserts rows into append-only tables, and updates pointers and heads.
GRANT INSERT ON
  sluice_models, sluice_versions, sluice_receipts, sluice_recordings, sluice_version_receipts,
  sluice_decisions, sluice_history, sluice_imported_receipts, sluice_own_lineages,
  sluice_rollouts, sluice_rollout_transitions, sluice_log, sluice_signatures, sluice_refusals,
  sluice_pointers, sluice_rollout_heads, sluice_rollout_notes, sluice_deliveries
TO sluice_promoter;
GRANT UPDATE ON sluice_pointers, sluice_rollout_heads, sluice_log_head TO sluice_promoter;
-- Locking the row of a model (SELECT ... FOR UPDATE) needs this right. A trigger rejects every change
-- of the row.
GRANT UPDATE (name) ON sluice_models TO sluice_promoter;
GRANT USAGE ON SEQUENCE
  sluice_recordings_id_seq, sluice_version_receipts_id_seq, sluice_decisions_id_seq,
  sluice_history_id_seq, sluice_imported_receipts_id_seq, sluice_refusals_id_seq
TO sluice_promoter;
