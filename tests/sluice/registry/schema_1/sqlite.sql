CREATE TABLE sluice_decisions (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	model VARCHAR(200) NOT NULL, 
	candidate VARCHAR(64) NOT NULL, 
	reference VARCHAR(64) NOT NULL, 
	window VARCHAR(64) NOT NULL, 
	receipt VARCHAR(64) NOT NULL, 
	recorded_at VARCHAR(40) NOT NULL, 
	UNIQUE (model, candidate, reference, window), 
	FOREIGN KEY(model) REFERENCES sluice_models (name), 
	FOREIGN KEY(receipt) REFERENCES sluice_receipts (digest)
);
CREATE TABLE sluice_history (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at VARCHAR(40) NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	action VARCHAR(20) NOT NULL, 
	from_version INTEGER, 
	to_version INTEGER NOT NULL, 
	actor VARCHAR(200) NOT NULL, 
	reason TEXT NOT NULL, 
	receipt VARCHAR(64), 
	revision INTEGER, 
	FOREIGN KEY(model, to_version) REFERENCES sluice_versions (model, number), 
	UNIQUE (model, revision), 
	FOREIGN KEY(model) REFERENCES sluice_models (name), 
	FOREIGN KEY(receipt) REFERENCES sluice_receipts (digest)
);
CREATE TABLE sluice_models (
	name VARCHAR(200) NOT NULL, 
	created_at VARCHAR(40) NOT NULL, 
	PRIMARY KEY (name)
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
CREATE TABLE sluice_receipts (
	digest VARCHAR(64) NOT NULL, 
	gate VARCHAR(40) NOT NULL, 
	payload TEXT NOT NULL, 
	recorded_at VARCHAR(40) NOT NULL, 
	PRIMARY KEY (digest)
);
CREATE TABLE sluice_recordings (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	receipt VARCHAR(64) NOT NULL, 
	recorded_at VARCHAR(40) NOT NULL, 
	FOREIGN KEY(receipt) REFERENCES sluice_receipts (digest)
);
CREATE TABLE sluice_schema_version (
	only_row INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	PRIMARY KEY (only_row)
);
CREATE TABLE sluice_version_receipts (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	model VARCHAR(200) NOT NULL, 
	number INTEGER NOT NULL, 
	receipt VARCHAR(64) NOT NULL, 
	linked_at VARCHAR(40) NOT NULL, 
	FOREIGN KEY(model, number) REFERENCES sluice_versions (model, number), 
	UNIQUE (model, number, receipt), 
	FOREIGN KEY(receipt) REFERENCES sluice_receipts (digest)
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
CREATE TRIGGER sluice_versions_no_update BEFORE UPDATE ON sluice_versions BEGIN SELECT RAISE(ABORT, 'sluice_versions is append-only'); END;
CREATE TRIGGER sluice_versions_no_delete BEFORE DELETE ON sluice_versions BEGIN SELECT RAISE(ABORT, 'sluice_versions is append-only'); END;
CREATE TRIGGER sluice_receipts_no_update BEFORE UPDATE ON sluice_receipts BEGIN SELECT RAISE(ABORT, 'sluice_receipts is append-only'); END;
CREATE TRIGGER sluice_receipts_no_delete BEFORE DELETE ON sluice_receipts BEGIN SELECT RAISE(ABORT, 'sluice_receipts is append-only'); END;
CREATE TRIGGER sluice_recordings_no_update BEFORE UPDATE ON sluice_recordings BEGIN SELECT RAISE(ABORT, 'sluice_recordings is append-only'); END;
CREATE TRIGGER sluice_recordings_no_delete BEFORE DELETE ON sluice_recordings BEGIN SELECT RAISE(ABORT, 'sluice_recordings is append-only'); END;
CREATE TRIGGER sluice_version_receipts_no_update BEFORE UPDATE ON sluice_version_receipts BEGIN SELECT RAISE(ABORT, 'sluice_version_receipts is append-only'); END;
CREATE TRIGGER sluice_version_receipts_no_delete BEFORE DELETE ON sluice_version_receipts BEGIN SELECT RAISE(ABORT, 'sluice_version_receipts is append-only'); END;
CREATE TRIGGER sluice_decisions_no_update BEFORE UPDATE ON sluice_decisions BEGIN SELECT RAISE(ABORT, 'sluice_decisions is append-only'); END;
CREATE TRIGGER sluice_decisions_no_delete BEFORE DELETE ON sluice_decisions BEGIN SELECT RAISE(ABORT, 'sluice_decisions is append-only'); END;
CREATE TRIGGER sluice_history_no_update BEFORE UPDATE ON sluice_history BEGIN SELECT RAISE(ABORT, 'sluice_history is append-only'); END;
CREATE TRIGGER sluice_history_no_delete BEFORE DELETE ON sluice_history BEGIN SELECT RAISE(ABORT, 'sluice_history is append-only'); END;
