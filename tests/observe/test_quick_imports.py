"""Imports without garbage collection and without what no stage uses: everything is as before afterwards."""

import gc
import importlib
import importlib.metadata
import importlib.util
import sys

import pytest

from stages.observe import quick_imports as module
from stages.observe.quick_imports import quick_imports


@pytest.fixture
def colorsys_unused(monkeypatch):
    """A module of the standard library in the place of what is left out."""
    monkeypatch.setattr(module, "UNUSED", ("colorsys",))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.delitem(sys.modules, "transformers", raising=False)


def test_what_is_left_out_seems_not_to_be_installed_inside_only(colorsys_unused):
    with quick_imports():
        assert importlib.util.find_spec("colorsys") is None
        with pytest.raises(ImportError):
            importlib.import_module("colorsys")
    assert importlib.import_module("colorsys").rgb_to_hsv(0, 0, 0) == (0, 0, 0)


def test_what_is_loaded_already_stays_and_nothing_is_hidden_from_a_library_that_has_seen_it(
    colorsys_unused, monkeypatch
):
    """transformers keeps what it has found installed, and fails where that is gone."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", module)
        with quick_imports():
            loaded = importlib.import_module("colorsys")
    with quick_imports():
        assert importlib.import_module("colorsys") is loaded
    assert sys.modules["colorsys"] is loaded


@pytest.mark.parametrize("was_collecting", [True, False])
def test_garbage_is_collected_as_before_also_after_a_failed_import(colorsys_unused, was_collecting):
    assert gc.isenabled()
    (gc.enable if was_collecting else gc.disable)()
    try:
        with pytest.raises(ImportError), quick_imports():
            assert not gc.isenabled()
            importlib.import_module("no_such_module_at_all")
        assert gc.isenabled() == was_collecting and "colorsys" not in sys.modules
    finally:
        gc.enable()


def test_after_many_imports_collections_leave_out_what_is_there(monkeypatch):
    monkeypatch.setattr(module, "MANY_MODULES", 3)

    def left_out(count):
        """Returns how many more objects are left out after so many imports: about 10,000, or none."""
        before, held = gc.get_freeze_count(), [[] for _ in range(10_000)]
        with quick_imports():
            for number in range(count):
                monkeypatch.setitem(sys.modules, f"made_up_{count}_{number}", module)
        return gc.get_freeze_count() - before if held else None

    assert left_out(3) < 5_000 < left_out(4)


def test_packages_have_the_distributions_that_python_finds():
    exact, found = importlib.metadata.packages_distributions(), module.packages_distributions()
    assert {"PIL", "yaml", "sklearn"} <= set(exact)
    assert {package: set(names) for package, names in exact.items()}.items() <= {
        package: set(names) for package, names in found.items()
    }.items()
    with quick_imports():
        assert importlib.metadata.packages_distributions() == found
    assert importlib.metadata.packages_distributions is not module.packages_distributions
