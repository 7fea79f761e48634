"""A launcher is one class: the section `launch` takes it, both pages have it, and it says what it runs and how."""

from typing import get_args

import pytest

from pipelines.launching.launchers import LAUNCHERS, Launcher
from stages.foundations.machine import PROJECT

PARAMS = (PROJECT / "docs/reference/params.md").read_text()
CLUSTER = (PROJECT / "docs/how-to/run-on-a-cluster.md").read_text()


def leaves(kind):
    return [leaf for one in kind.__subclasses__() for leaf in leaves(one)] or [kind]


@pytest.mark.parametrize("launcher", leaves(Launcher))
def test_a_launcher_is_taken_described_and_complete(launcher):
    (kind,) = get_args(launcher.model_fields["kind"].annotation)
    assert launcher in LAUNCHERS
    assert f"### `launch.command`, kind `{kind}`\n\n{launcher.__doc__.splitlines()[0]}" in PARAMS
    assert f"\n| `{kind}` | " in CLUSTER
    assert launcher.plan is not Launcher.plan and launcher.run is not Launcher.run
    assert launcher.is_here or launcher.tool, "a program that is missing is named before anything runs"
