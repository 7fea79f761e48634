"""The file of a source: pinned behind a URL, on this machine, or of a data set on the hub."""

from __future__ import annotations

from pathlib import Path

from stages.collect.params import HubSource, LocalSource, UrlSource
from stages.engines.pinned_files import pinned_file
from stages.foundations.errors import UserError
from stages.foundations.files import require_sha256
from stages.foundations.machine import from_root


def locate_file(name: str, origin: UrlSource | LocalSource | HubSource) -> Path:
    """A path to the source's file with the right bytes; UserError says which, and what to do about it."""
    match origin:
        case LocalSource():
            return _local_file(name, origin)
        case HubSource():
            return _hub_file(origin)
        case UrlSource():
            return pinned_file(origin.url, origin.sha256, f"sources.{name}.from.sha256")


def _local_file(name: str, origin: LocalSource) -> Path:
    path = from_root(origin.path)
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: correct sources.{name}.from.path, it counts from the project's root"
        )
    remedy = (
        f"which sources.{name}.from.sha256 says: the file is not the one that the recipe means. "
        "Put its sha256 into the recipe if it is what you want"
    )
    require_sha256(path, origin.sha256, remedy)
    return path


def _hub_file(origin: HubSource) -> Path:
    from huggingface_hub import hf_hub_download

    remedy = "check names, network and, for a gated data set, your token; or fetch it elsewhere and use kind: local"
    try:
        return Path(
            hf_hub_download(origin.repository, origin.file, repo_type="dataset", revision=origin.revision)
        )
    except Exception as error:  # the hub client raises many kinds; each means that the file cannot be had
        where = f"{origin.file} of {origin.repository} at {origin.revision[:12]}"
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{where} cannot be fetched from the hub ({reason}): {remedy}") from error
