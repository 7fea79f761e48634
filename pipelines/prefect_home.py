"""Prefect's settings of this project. Imported before Prefect, which reads them once.

Its database belongs to the project, and nothing is reported home.
"""

from __future__ import annotations

import os

from stages.foundations.scratch import state_folder

os.environ.setdefault("PREFECT_HOME", str(state_folder() / "prefect"))
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
