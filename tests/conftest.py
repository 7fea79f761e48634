"""No test touches the project's own state: tracking is off and scratch folders lie in the test's own folder."""

import atexit
import fcntl
import gc
import os
import shutil
from pathlib import Path

import pytest

from stages.observe.quick_imports import quick_imports

# fmt: off
LONGEST_FILES = (  # in a run with four workers, from 400 s down to 40 s
    "test_graph.py", "test_servers.py", "test_tutorial.py", "test_round.py", "test_gsm8k_recipe.py", "test_tracking.py",
    "test_reproduce.py", "test_vllm_sampler.py", "test_relay.py", "test_stage.py", "test_branches.py",
    "test_extract_web_shards.py", "test_ablating.py", "test_long_image_stages.py", "test_fingerprints.py",
    "test_fleet.py", "test_sharing.py", "test_unobserved.py", "test_refl.py", "test_environment.py",
    "test_replicated_sampler.py", "test_mirroring.py", "test_unchanged.py",
    "test_workers.py", "test_report.py", "test_deepspeed_trainer.py", "test_evaluation.py",
)
# fmt: on

gc.disable()  # a third of the time of collection goes into looking through what the imports make, which all stays

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker imports all tests. It has no exit code, and freeing what was imported takes seconds.
    atexit.register(os._exit, 0)
    with quick_imports():
        # A later import of these modules would load scikit-learn and scipy.
        import diffusers.loaders.single_file_utils  # noqa: F401
        import transformers.generation.candidate_generator  # noqa: F401


def pytest_collection_modifyitems(items):
    """The longest files come first: a file stays with one worker, and the others would wait for it in the end."""
    places = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(Path(item.path).name, len(places)))
    if not Path("/dev/nvidiactl").exists() and "RETRACE_GPU_TESTS_ON" not in os.environ:
        no_gpu = pytest.mark.skip(reason="needs an NVIDIA GPU, and this machine has none")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(no_gpu)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def state_of_wider_fixtures(tmp_path_factory):
    """Fixtures of a module or a session are made before `own_state`: without this they would share the project's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETRACE_TRACKING", "off")
        patch.setenv("RETRACE_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRACE_TRACKING", "off")
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def taught(tmp_path_factory):
    """A folder with the inputs of `tests.fakes.taught_policy` and the policy `sft` that the real stage made of them.

    All workers share it: the first one that needs it makes it. Tests only read what is in it.
    """
    from stages.__main__ import main
    from tests.fakes.taught_policy import sft_flags, write_inputs, write_params

    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    folder, finished = place / "taught", place / "taught.finished"
    with open(place / "taught.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed in the middle
            folder.mkdir()
            write_inputs(folder)
            main(sft_flags(folder, write_params(folder / "params.yaml"), folder))
            finished.touch()
    return folder
