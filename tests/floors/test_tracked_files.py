"""What git holds is source: data and weights belong to DVC."""

import subprocess
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def test_no_large_file_is_tracked_by_git():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True)
    tracked = [PROJECT / name for name in listed.stdout.split("\0") if name]
    large = {path.name: path.stat().st_size for path in tracked if path.is_file() and path.stat().st_size > 900 * 1024}
    assert not large
