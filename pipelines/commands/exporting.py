"""`retrace export`: a policy as a folder that transformers and vLLM load, with a model card written from its lineage.

Training keeps float32, so policies in the graph are twice as large as published ones usually are. The export casts
them, splits them into shards, and describes in README.md their data, training and scores.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from pydantic import BaseModel

from stages.foundations.errors import UserError
from stages.foundations.files import dump_yaml, replace_folder
from stages.foundations.machine import PROJECT

if TYPE_CHECKING:  # these import MLflow and torch, which would delay `retrace --help`
    from pipelines.records.chain import Chain
    from stages.foundations.dvc_lock import LockedStage

SHARD_BYTES = 5_000_000_000
"""Largest size of a weights file, as recommended by transformers and the hub."""
INDEX = "model.safetensors.index.json"
CHAT_TEMPLATE_DIR = "additional_chat_templates"
"""As in transformers, whose import would delay `retrace --help`."""
NOT_COPIED = (".safetensors", INDEX, "README.md")

METHODS: tuple[tuple[str, str, object, str], ...] = (
    ("sft", "sft.steps", ..., "supervised fine-tuning, loss on the response alone"),
    ("sft", "sft.adapter.kind", "lora", "LoRA in supervised fine-tuning, merged (arXiv 2106.09685)"),
    ("rl_round", "rl.advantage.divide_by_std", False, "without the division by the deviation, Dr. GRPO (2503.20783)"),
    ("rl_round", "rl.advantage_whitening", "tokens", "advantages whitened over the batch's tokens"),
    ("rl_round", "rl.aggregation", "prompt_mean", "ScaleRL's mean over prompts (arXiv 2510.13786)"),
    ("rl_round", "rl.top_entropy_fraction", ..., "gradients of the tokens with the highest entropy (2506.01939)"),
    ("rl_round", "rl.reference_kl.kind", "weighted_k3", "DeepSeek-V3.2's unbiased KL (arXiv 2512.02556)"),
    ("rl_round", "rl.reference_kl.reset_every_steps", ..., "the reference reset at intervals, ProRL (2505.24864)"),
    ("rl_round", "prompt.forced_end.kind", "phrase", "thoughts ended at a budget, ScaleRL (arXiv 2510.13786)"),
)
"""Stage, parameter, its value (... for any), and the card's text for it. The kinds of section `rl` need none: the card
has the first sentence of their models."""


def export(
    policy: Annotated[str, typer.Argument(help="a policy of this project (rl_3), or a policy folder")],
    to: Annotated[Path, typer.Option(help="folder to write; it must be new or empty")],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="dtype of the weights (default: the base policy's)"),
    ] = None,
    push: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="also upload it to this repository of the Hugging Face hub")
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="make a new repository public (default: private)")] = False,
) -> None:
    """Write a policy as a folder that transformers and vLLM load.

    The folder has the weights in the base's dtype, in shards, the tokenizer, the chat template and generation settings.
    README.md is a model card: data with licences, methods with papers, scores with intervals, and the commands that
    reproduce it.
    """
    folder, chain = _find(policy)
    # Before anything is written: a push that cannot succeed must not cost an export.
    token = _token(push)
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise UserError(f"--to {to} is not empty: name a new folder, because nothing is overwritten")
    dtype = dtype or _base_dtype(folder)
    with replace_folder(to) as place:
        write_weights(folder, place, dtype)
        for file in sorted(folder.iterdir()):
            if file.is_file() and not file.name.endswith(NOT_COPIED):
                shutil.copyfile(file, place / file.name)
            # Chat templates besides the usual one, such as one for tools.
            elif file.name == CHAT_TEMPLATE_DIR:
                shutil.copytree(file, place / file.name)
        _note_dtype(place / "config.json", dtype)
        (place / "README.md").write_text(model_card(policy, chain, dtype), encoding="utf-8")
    size = sum(file.stat().st_size for file in to.iterdir())
    typer.echo(f"{to}: {policy} in {dtype}, {size / 1e6:,.1f} MB. Read README.md before you publish it")
    if push:
        typer.echo(f"pushed: {_push(to, push, token, public)}")


def _find(policy: str) -> tuple[Path, Chain | None]:
    """Returns the policy's folder, and its chain if this project made it."""
    from pipelines.records.chain import POLICIES, find_chain

    named = PROJECT / POLICIES / policy
    # A name with a slash is a folder, even if a policy of that name exists.
    is_named = "/" not in policy and (named / "config.json").is_file()
    folder = named if is_named else Path(policy)
    if not (folder / "config.json").is_file():
        known = sorted(path.parent.name for path in (PROJECT / POLICIES).glob("*/config.json"))
        raise UserError(
            f"{policy!r} is neither a policy of this project ({', '.join(known) or 'none has been made'}) nor a folder "
            "with a config.json: run `dvc repro` or `dvc pull`, or name a policy folder"
        )
    return folder, find_chain(policy, PROJECT) if is_named else None


def _token(push: str) -> str:
    """Returns the hub's token; UserError if it is needed for a push but missing."""
    if not push:
        return ""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(push)
    except HFValidationError as error:
        raise UserError(f"--push {push}: {error}") from error
    if "/" not in push:
        raise UserError(f"--push {push}: name the owner too, as in OWNER/{push}")
    token = get_token()
    if not token:
        raise UserError("--push needs a token of the Hugging Face hub: set HF_TOKEN, or run `hf auth login`")
    return token


def _base_dtype(folder: Path) -> str:
    """Returns the dtype of the base policy if it is next to this one: a round trains and saves in float32."""
    for place in (folder.parent / "base", folder):
        with suppress(OSError, ValueError):
            config = json.loads((place / "config.json").read_text(encoding="utf-8"))
            # Older versions of transformers wrote torch_dtype.
            named = config.get("dtype") or config.get("torch_dtype")
            if named in ("float32", "bfloat16", "float16"):
                return named
    return "float32"


def write_weights(folder: Path, to: Path, dtype: str) -> None:
    """Writes the safetensors files of `folder` into `to`, floating-point weights in `dtype`, one shard in memory.

    A single file below `SHARD_BYTES` is called model.safetensors; several files have an index, as in transformers.
    UserError if the folder has no such files.
    """
    import torch
    from safetensors.torch import save_file

    target = getattr(torch, dtype)
    shards: list[list[str]] = []
    shard: dict[str, Any] = {}
    size = total = 0

    def write() -> None:
        save_file(shard, to / f"part-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    # One shard is in memory at a time: few machines have memory for two copies of a 70B policy.
    for name, weight in _weights(folder):
        weight = weight.to(target) if weight.is_floating_point() else weight
        bytes_of_it = weight.numel() * weight.element_size()
        if shard and size + bytes_of_it > SHARD_BYTES:
            write()
            size = 0
        shard[name] = weight.contiguous()
        size, total = size + bytes_of_it, total + bytes_of_it
    write()
    # Their names contain the number of shards, which is known only after the last one.
    names = [f"model-{number + 1:05}-of-{len(shards):05}.safetensors" for number in range(len(shards))]
    names = ["model.safetensors"] if len(names) == 1 else names
    for number, name in enumerate(names):
        (to / f"part-{number}").rename(to / name).chmod(0o644)  # safetensors leaves it to its owner alone
    if len(names) > 1:
        places = {weight: name for name, weights in zip(names, shards, strict=True) for weight in weights}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (to / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _weights(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} has no safetensors: run `dvc pull`, or name a folder with weights")
    for file in files:
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.offset_keys():
                    yield name, weights.get_tensor(name)
        except SafetensorError as error:
            raise UserError(f"{file} is damaged ({error}): make it again, or `dvc checkout`") from error


def _note_dtype(config: Path, dtype: str) -> None:
    content = json.loads(config.read_text(encoding="utf-8"))
    content.pop("torch_dtype", None)
    config.write_text(json.dumps(content | {"dtype": dtype}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _push(folder: Path, repository: str, token: str, is_public: bool) -> str:
    """Uploads the folder and returns its address; UserError in one sentence if the hub rejects it."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        api.create_repo(repository, private=not is_public, exist_ok=True)
        return str(api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Exported by Retrace"))
    except Exception as error:  # the hub client raises many kinds; each means that the upload failed
        raise UserError(
            f"{repository} was not pushed ({str(error).strip().splitlines()[0]}): {folder} is complete, check the "
            f"token's rights and the network, then `hf upload {repository} {folder}`"
        ) from error


def model_card(policy: str, chain: Chain | None, dtype: str) -> str:
    """Returns the text of README.md, with a YAML head for the hub; equal arguments give equal text."""
    # The hub builds the model's page from this head, so its keys are the hub's.
    entries = [step.entry for step in chain.steps] if chain else []
    base = next((entry.params.get("base", {}) for entry in entries if entry.stage == "base"), {})
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["retrace"]}
    if base.get("kind") == "hub":
        head["base_model"] = base["repository"]
    lines = ["---", dump_yaml(head).strip(), "---", "", f"# {Path(policy).name}", ""]
    if chain is None:
        return "\n".join([*lines, "This folder was not made by a known project, so its data are unknown.", ""])
    lines += [f"A language model in {dtype}, trained with Retrace from {_origin(base)}.", ""]
    lines += _section("Scores", ("benchmark", "metric", "score", "95% interval"), _scores(chain.scores))
    lines += _section("Data", ("source", "role", "from", "licence"), _sources(entries))
    lines += ["If you distribute this model, you must follow their licences and that of the base model.", ""]
    lines += ["## Methods", "", *(f"- {method}" for method in _methods(entries)), ""]
    lines += ["## How to reproduce it", "", "```", *_commands(chain), "```", ""]
    made = [(e.name, e.key[:12], e.code[:12]) for e in entries]
    lines += _section("Stages", ("stage", "lock hash", "code fingerprint"), made)
    return "\n".join(lines)


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    from stages.pages.page import markdown_table

    table = markdown_table(head, rows) if rows else ["Nothing is on record."]
    return [f"## {title}", "", *table, ""]


def _origin(base: Mapping[str, Any]) -> str:
    match base.get("kind"):
        case "hub":
            return f"[{base['repository']}](https://huggingface.co/{base['repository']}) at {base['revision'][:12]}"
        case "gguf_package":
            return f"{base['member']} of the Python package {base['package']} {base['version']}"
        case "folder":
            return f"the folder {Path(base['path']).name}"
        case "random":
            return f"random weights ({base['layers']} layers of width {base['hidden_size']})"
    return "a base that is not on record"


def _scores(scores: Mapping[str, float]) -> list[tuple[str, str, str, str]]:
    from stages.pages.page import metric_label

    return [
        (
            *(part if number == 0 else metric_label(part) for number, part in enumerate(name.rsplit("/", 1))),
            f"{100 * value:.1f}%",
            f"{100 * scores[f'{name}_low']:.1f} to {100 * scores[f'{name}_high']:.1f}",
        )
        for name, value in scores.items()
        if f"{name}_low" in scores and f"{name}_high" in scores
    ]


def _sources(entries: Sequence[LockedStage]) -> list[tuple[str, str, str, str]]:
    """Returns every named source of the chain that states its licence, for problems and web pages."""
    rows = []
    for entry in entries:
        for section, values in entry.params.items():
            sources = values.get("sources", {}) if section == "collect_web" else {section: values}
            for name, source in sources.items() if isinstance(sources, Mapping) else ():
                if isinstance(source, Mapping) and source.get("licence"):
                    origin = source.get("from", source)
                    place = next((origin[k] for k in ("repository", "url", "path") if origin.get(k)), origin["kind"])
                    rows.append((name.rpartition(".")[2], source.get("role", "web"), place, source["licence"]))
    return [tuple(map(str, row)) for row in rows]


def _methods(entries: Sequence[LockedStage]) -> list[str]:
    """Returns the texts of METHODS for the parameters of the chain's stages, each once, in the order of METHODS; then
    the kinds that section `rl` chooses, and the teacher of each round that has one."""
    from stages.rl_round.params import RlParams

    methods = []
    for stage, name, expected, method in METHODS:
        values = [_value(entry.params, name) for entry in entries if entry.stage == stage]
        if any(value == expected or (expected is ... and value is not None) for value in values):
            methods.append(method)
    rounds = [entry.params.get("rl", {}) for entry in entries if entry.stage == "rl_round"]
    methods += dict.fromkeys(text for section in rounds for text in _kinds(section, RlParams, "rl"))
    teachers = {entry.item: entry.params.get(f"teachers.{entry.item}") for entry in entries if entry.stage == "teacher"}
    for entry in entries:
        # Only a round has this key.
        if distillation := entry.params.get(f"rl_rounds.{entry.item}", {}).get("distillation"):
            teacher, weight = teachers.get(entry.item) or "a policy that is not on record", distillation["coefficient"]
            methods.append(f"on-policy distillation in {entry.item}: from {teacher}, coefficient {weight:g}")
    return methods


def _kinds(section: Mapping[str, Any], model: type[BaseModel], place: str) -> Iterator[str]:
    """Yields `place.kind: first sentence of its model` for each kind that a section chooses; of a kind that the code
    no longer knows, the kind alone."""
    for name, value in section.items():
        if not isinstance(value, Mapping):
            continue
        field = model.model_fields.get(name)
        models, kind = _models_in(field.annotation) if field else [], value.get("kind")
        kinds = [get_args(one.model_fields["kind"].annotation) if "kind" in one.model_fields else () for one in models]
        chosen = [one for one, own in zip(models, kinds, strict=True) if kind in own or (kind is None and not own)]
        if kind not in (None, "none"):
            sentence = f": {_first_sentence(chosen[0])}" if chosen else ""
            yield f"`{place}.{name}.kind: {kind}`{sentence}"
        if chosen:
            yield from _kinds(value, chosen[0], f"{place}.{name}")


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _first_sentence(model: type[BaseModel]) -> str:
    paragraph = " ".join((model.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"[.](?: |$)", paragraph)[0]


def _value(params: Mapping[str, Any], name: str) -> Any:
    value: Any = params
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _commands(chain: Chain) -> list[str]:
    from stages.observe.git import ask_git

    # Only a clean checkout gives the same bytes again, so uncommitted changes are named.
    commit = chain.snapshot.commit or ask_git(chain.snapshot.root, "rev-parse", "HEAD")
    is_changed = not chain.snapshot.commit and bool(ask_git(chain.snapshot.root, "status", "--porcelain"))
    where = f"git checkout {commit}" if commit else "# the commit is not on record"
    return [
        where + ("    # and changes that were not committed" if is_changed else ""),
        "make set-up && source .venv/bin/activate",
        *(f"dvc repro {target}" for target in chain.targets),
    ]
