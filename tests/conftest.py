"""No test touches the project's own state: tracking is off and scratch folders lie in the test's own folder."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "2")


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRACE_TRACKING", "off")
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
