"""Make a database with the schema of an early MLflow, and one run: `make_old_mlflow.py FILE REVISION`."""

import sqlite3
import sys

from alembic.command import upgrade
from mlflow.store.db.utils import _get_alembic_config, create_sqlalchemy_engine
from mlflow.store.tracking.dbmodels.initial_models import Base

file, revision = sys.argv[1:]
Base.metadata.create_all(create_sqlalchemy_engine(f"sqlite:///{file}"))
upgrade(_get_alembic_config(f"sqlite:///{file}"), revision)
with sqlite3.connect(file) as connection:
    connection.execute("INSERT INTO experiments VALUES (1, 'old', './mlruns/1', 'active')")
    columns = "run_uuid, name, source_type, entry_point_name, user_id, status, start_time, end_time, lifecycle_stage"
    connection.execute(
        f"INSERT INTO runs ({columns}, artifact_uri, experiment_id) VALUES "
        "('abc', 'old run', 'LOCAL', '', 'me', 'FINISHED', 1000, 9000, 'active', './mlruns/1/abc/artifacts', 1)"
    )
    connection.execute(
        "INSERT INTO metrics (key, value, timestamp, run_uuid, step) VALUES ('loss', 0.5, 2000, 'abc', 3)"
    )
