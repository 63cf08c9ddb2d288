CREATE TABLE sluice_schema_version (
	only_row INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	PRIMARY KEY (only_row)
);
CREATE TABLE sluice_models (
	name VARCHAR(200) NOT NULL, 
	created_at VARCHAR(40) NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE sluice_receipts (
	digest VARCHAR(64) NOT NULL, 
	gate VARCHAR(40) NOT NULL, 
	payload TEXT NOT NULL, 
	recorded_at VARCHAR(40) NOT NULL, 
	PRIMARY KEY (digest)
);
CREATE TABLE sluice_versions (
	model VARCHAR(200) NOT NULL, 
	number INTEGER NOT NULL, 
	candidate VARCHAR(64) NOT NULL, 
	lineage TEXT NOT NULL, 
	registered_at VARCHAR(40) NOT NULL, 
	PRIMARY KEY (model, number), 
	UNIQUE (model, candidate), 
	FOREIGN KEY(model) REFERENCES sluice_models (name)
);
CREATE TABLE sluice_recordings (
	id SERIAL NOT NULL, 
	receipt VARCHAR(64) NOT NULL, 
	recorded_at VARCHAR(40) NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(receipt) REFERENCES sluice_receipts (digest)
);
CREATE TABLE sluice_decisions (
	id SERIAL NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	candidate VARCHAR(64) NOT NULL, 
	reference VARCHAR(64) NOT NULL, 
	"window" VARCHAR(64) NOT NULL, 
	receipt VARCHAR(64) NOT NULL, 
	recorded_at VARCHAR(40) NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (model, candidate, reference, "window"), 
	FOREIGN KEY(model) REFERENCES sluice_models (name), 
	FOREIGN KEY(receipt) REFERENCES sluice_receipts (digest)
);
CREATE TABLE sluice_version_receipts (
	id SERIAL NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	number INTEGER NOT NULL, 
	receipt VARCHAR(64) NOT NULL, 
	linked_at VARCHAR(40) NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(model, number) REFERENCES sluice_versions (model, number), 
	UNIQUE (model, number, receipt), 
	FOREIGN KEY(receipt) REFERENCES sluice_receipts (digest)
);
CREATE TABLE sluice_pointers (
	model VARCHAR(200) NOT NULL, 
	name VARCHAR(40) NOT NULL, 
	version INTEGER, 
	revision INTEGER NOT NULL, 
	PRIMARY KEY (model, name), 
	FOREIGN KEY(model, version) REFERENCES sluice_versions (model, number), 
	FOREIGN KEY(model) REFERENCES sluice_models (name)
);
CREATE TABLE sluice_history (
	id SERIAL NOT NULL, 
	at VARCHAR(40) NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	action VARCHAR(20) NOT NULL, 
	from_version INTEGER, 
	to_version INTEGER NOT NULL, 
	actor VARCHAR(200) NOT NULL, 
	reason TEXT NOT NULL, 
	receipt VARCHAR(64), 
	revision INTEGER, 
	PRIMARY KEY (id), 
	FOREIGN KEY(model, to_version) REFERENCES sluice_versions (model, number), 
	UNIQUE (model, revision), 
	FOREIGN KEY(model) REFERENCES sluice_models (name), 
	FOREIGN KEY(receipt) REFERENCES sluice_receipts (digest)
);
CREATE OR REPLACE FUNCTION sluice_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'sluice: this table is append-only'; END $$;
CREATE TRIGGER sluice_versions_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sluice_versions FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only();
CREATE TRIGGER sluice_receipts_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sluice_receipts FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only();
CREATE TRIGGER sluice_recordings_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sluice_recordings FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only();
CREATE TRIGGER sluice_version_receipts_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sluice_version_receipts FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only();
CREATE TRIGGER sluice_decisions_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sluice_decisions FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only();
CREATE TRIGGER sluice_history_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sluice_history FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only();
