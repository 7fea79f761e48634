"""The vLLM sampler: in this process if possible, otherwise with vLLM's worker processes.

In this process, weights are passed in memory and a repeated call repeats its batches exactly. This is so on one device,
and on ranks that share a program: each rank, or tensor-parallel group of neighbouring ranks, holds an engine, as in TRL
and verl. Tensor parallelism in a program that runs once has worker processes, which get weights as files.

On a GPU the engine sleeps from the end of sampling to the next weights: weights and key-value cache leave the GPU, CUDA
graphs stay. There vLLM chooses the model runner, and takes the one for which seeded requests cost nothing.

Tried with vllm-cpu 0.32, and with vLLM 0.26 on H100 and H200. No environment variable needs to be set.

`VllmSampler` comes first. `VllmDecoding` holds the trajectories in flight. The checks of a policy folder are last. They
run before the engine starts, because its start takes long and its errors say little.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import math
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor
from transformers import PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion

from stages.engines.devices import pick_device
from stages.engines.policies.forward_probe import Reference, check_engine_forward, reference_of
from stages.engines.policies.policy_folders import check_tokenizer_fits, load_config, load_model, model_without_weights
from stages.engines.policies.tokenizers import load_tokenizer, read_end_tokens
from stages.engines.relays.published_weights import in_shards
from stages.engines.samplers.params import VllmSamplerParams
from stages.engines.samplers.protocol import (
    FullSample,
    Load,
    PartialResponse,
    Sample,
    SamplingSettings,
    Trajectory,
    check_begun,
    until_ended,
)
from stages.engines.samplers.stop_strings import StopStrings, why_ended
from stages.engines.samplers.vllm_weights import OWNER_VARIABLE
from stages.foundations.errors import UserError
from stages.foundations.machine import variables_set
from stages.foundations.packages import require_package
from stages.foundations.params import ChatPrompt, PlainPrompt
from stages.foundations.seeds import derive_seed
from stages.observe.progress import say

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput, SamplingParams

ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding would pin the trainer's threads too
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""Chooses between vLLM's two model runners."""
CPU_WORKER_ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1", "PYTHONWARNINGS": "ignore::FutureWarning"}
SHARD_BYTES = 2 << 30
"""Size in bytes of a weights file for worker processes: limits how much is held twice in CPU memory."""
LARGEST_KEPT_VOCABULARY = 4096
"""vLLM passes log-probs as lists of Python numbers, with over 100 bytes for each token of the vocabulary. A vocabulary
of 10,000 takes 1 MB per sampled token."""
USUAL_MAX_LOGPROBS = 20
SET_BY_VLLM = {"LOCAL_WORLD_SIZE": "1", "LD_PRELOAD": ""}
"""Variables that vLLM sets on a CPU for its processes, with their values when unset. They are restored: with two ranks
per engine, the verifier of this process would otherwise start half of its workers."""


class VllmSampler:
    """Implements `stages.engines.samplers.protocol.Sampler`."""

    def __init__(
        self, params: VllmSamplerParams, policy_folder: Path, prompt: PlainPrompt | ChatPrompt | None = None
    ) -> None:
        require_package("vllm", "sampler.kind: vllm")
        self.params = params
        # A model that also takes images has a config for each part; only text is sampled.
        whole = load_config(policy_folder)
        config = whole.get_text_config()
        self._family = f"{policy_folder} ({', '.join(whole.architectures or [])}, {whole.model_type})"
        self.end_tokens = check_policy(policy_folder, config, params.max_model_tokens, prompt)
        self.stops = StopStrings(load_tokenizer(policy_folder), params.stop) if params.stop else None
        self.vocabulary, self._positions = config.vocab_size, config.max_position_embeddings
        self.policy_version = 0
        self.has_ranks = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.is_in_process = self.has_ranks or params.tensor_parallel == 1
        self.is_asleep = False
        # vLLM joins an existing process group (the trainer's), and makes one otherwise.
        self._owns_process_group = self.is_in_process and not dist.is_initialized()
        reference = self._reference(policy_folder)
        try:
            self._llm = self._start(policy_folder)
        except ValidationError as error:
            raise UserError(
                f"vLLM does not take {self._family} ({error.errors()[0]['msg']}). Set `sampler.kind: torch`, "
                "or sample a text-only model of the family"
            ) from error
        self._checkpoint_names = weight_names(policy_folder)
        with torch.device("meta"):
            self._skeleton = model_without_weights(policy_folder, torch.float32)
        self.request_numbers = count()
        if reference:
            self._check(reference)

    def _reference(self, policy_folder: Path) -> Reference | None:
        """Returns None if this rank does not compare. Rank 0 compares for all. Ranks that share an engine do not
        compare, because they would have to call it together."""
        if self.has_ranks and (os.environ.get("RANK") != "0" or self.params.tensor_parallel > 1):
            return None
        # vLLM's processes cannot be forked from a process that uses a GPU.
        device = pick_device("auto" if self.is_in_process else "cpu")
        reference = transformers_reference(policy_folder, device, self.params.max_model_tokens)
        _free_memory()
        return reference

    def _check(self, reference: Reference) -> None:
        """Raises UserError, with the engine closed, if the engine would sample from wrong probabilities."""
        dtype = self._llm.llm_engine.model_config.dtype
        if dtype == torch.float32 and self._has_gpu:
            # Its kernels may multiply in TF32, which has as many digits as float16.
            dtype = torch.float16
        try:
            check_engine_forward(reference, "vLLM", dtype, self.logprobs)
        except UserError:
            self.close()
            raise

    def _start(self, policy_folder: Path) -> Any:
        os.environ.update(ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING="0" if self.is_in_process else "1")
        # A variable set by the user would override kv_cache_gib.
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
        os.environ.pop(RUNNER_VARIABLE, None)
        if importlib.util.find_spec("flashinfer") is None:
            os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        logging.getLogger("vllm").setLevel(logging.ERROR)
        from vllm.platforms import current_platform

        is_cpu = current_platform.is_cpu()
        self._has_gpu = not is_cpu
        self._can_sleep = self.is_in_process and current_platform.is_sleep_mode_available()
        memory: dict[str, Any] = {
            "gpu_memory_utilization": self.params.memory_fraction,
            "enable_sleep_mode": self._can_sleep,
        }
        if is_cpu:
            # The newer runner needs Triton.
            os.environ[RUNNER_VARIABLE] = "0"
            # Chunked prompts break seeded requests: vLLM rewinds their generators, which CPU generators do not support.
            memory = {"enable_chunked_prefill": False, "kv_cache_memory_bytes": int(self.params.kv_cache_gib * 2**30)}
            # Every small sampling function would be compiled: 19 s on first use, and it needs a C++ compiler.
            type(current_platform).simple_compile_backend = "eager"
        variables = {name: os.environ.get(name, unset) for name, unset in SET_BY_VLLM.items()}
        if not self.is_in_process:
            variables |= {OWNER_VARIABLE: str(os.getpid())} | (CPU_WORKER_ENVIRONMENT if is_cpu else {})
        with self._packing_threads(), variables_set(variables), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            from vllm import LLM
            from vllm.model_executor.models.transformers import base

            if self.is_in_process:
                # Families that vLLM has no model of, such as SmolLM3 and OLMo 2, run in transformers' classes. vLLM
                # would change these for the whole process, to compile them; the trainer's models would then fail.
                base.support_torch_compile = lambda **_: lambda model_class: model_class
            return LLM(
                model=str(policy_folder),
                # Prompts and responses are token ids throughout.
                skip_tokenizer_init=True,
                # Otherwise the policy folder's generation_config.json would silently change temperature and cuts.
                generation_config="vllm",
                dtype=self.params.dtype,
                # One more: `logprobs` requests one token after a whole sequence, because vLLM requires at least one.
                max_model_len=min(self.params.max_model_tokens + 1, self._positions),
                max_num_seqs=self.params.max_sequences,
                tensor_parallel_size=self.params.tensor_parallel,
                distributed_executor_backend="external_launcher" if self.has_ranks else None,
                enforce_eager=is_cpu or self.params.enforce_eager,
                # The responses of a group share their prompt.
                enable_prefix_caching=not is_cpu,
                # Of the distribution that is sampled from, after temperature and cuts: the loss needs those.
                logprobs_mode="processed_logprobs",
                max_logprobs=self.vocabulary if self._can_keep_distributions else USUAL_MAX_LOGPROBS,
                worker_extension_cls="stages.engines.samplers.vllm_weights.WeightReceiver",
                disable_log_stats=True,
                use_tqdm_on_load=False,
                # Each request has its own seed; this one is not used.
                seed=0,
                **memory,
            )

    def stream(self, trajectories: Sequence[Trajectory], settings: SamplingSettings) -> Iterator[tuple[int, Sample]]:
        """Raises UserError if distributions are to be kept and the vocabulary exceeds `LARGEST_KEPT_VOCABULARY`."""
        # The next wave of a response of several turns reads its earlier turns from the cache. `load_weights` clears it.
        if not trajectories or not all(one.begun.token_ids for one in trajectories):
            self._forget_prefixes()
        yield from until_ended(self._decoding(settings, is_stepped=False), dict(enumerate(trajectories)))

    def open(self, settings: SamplingSettings) -> VllmDecoding:
        """Implements the protocol: see `VllmDecoding`. Raises UserError as `stream` does."""
        self._forget_prefixes()
        return self._decoding(settings, is_stepped=True)

    def _packing_threads(self) -> AbstractContextManager[None]:
        """Packs weights on a CPU with one thread, whatever number the trainer of this process has set.

        oneDNN packs a matrix for the number of threads, and vLLM keeps its kernels by the matrix's shape alone. A
        kernel that meets a matrix packed for another number multiplies wrongly, without an error (measured on a small
        policy: log-probs off by up to 8). Packed for one thread, a product with two is no slower.
        """
        return _one_torch_thread() if self.is_in_process and not self._has_gpu else nullcontext()

    def _decoding(self, settings: SamplingSettings, is_stepped: bool) -> VllmDecoding:
        if settings.keeps_distributions and not settings.likeliest and not self._can_keep_distributions:
            raise UserError(
                f"vLLM gives whole distributions as Python numbers, and the policy has {self.vocabulary} tokens, more "
                f"than the {LARGEST_KEPT_VOCABULARY} that this is done for: set sampler.kind torch, or "
                "rl.rollout_correction.divergence likeliest with rl.study.rollout_distributions: {kind: likeliest, "
                "count: 20, max_gib: 4.0}"
            )
        return VllmDecoding(self, self._llm.llm_engine, settings, is_stepped)

    def _forget_prefixes(self) -> None:
        """Clears the prefix cache, so a repeated call repeats its batches and uses no keys of other weights."""
        if self._llm.llm_engine.has_unfinished_requests() or not self._llm.reset_prefix_cache():
            raise RuntimeError("trajectories are in flight in vLLM: withdraw them, or close their decoding")

    @property
    def _can_keep_distributions(self) -> bool:
        return self.vocabulary <= LARGEST_KEPT_VOCABULARY

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns log-probs of given responses; see the protocol. vLLM returns prompt log-probs unprocessed."""
        from vllm import SamplingParams

        # vLLM samples at least one token for each request; it is not used.
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False)
        pairs = list(zip(prompts, responses, strict=True))
        self.check_lengths([[*prompt, *response] for prompt, response in pairs], 1)
        outputs = self._answer([([*prompt, *response], params) for prompt, response in pairs])
        return [
            first_logprobs(outputs[index].prompt_logprobs)[len(prompt) - 1 :]  # a first token has no log-prob
            for index, (prompt, _) in enumerate(pairs)
        ]

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Replaces the weights. Raises UserError if names are missing or unknown; the sampler is then unusable.

        Raises RuntimeError if trajectories are in flight.
        """
        self._forget_prefixes()
        if self.is_asleep:
            self._llm.wake_up(tags=["weights"])
        names: set[str] = set()

        def noted() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in named_tensors:
                # Names are recorded here: the tensors come one at a time and are not kept.
                names.add(name)
                weights = {name: tensor.detach()}
                # Files may hold each expert separately, under names that vLLM knows.
                if name not in self._checkpoint_names:
                    weights = revert_weight_conversion(self._skeleton, weights)
                yield from weights.items()

        if self.is_in_process:
            with self._packing_threads():
                self._llm.collective_rpc("receive_tensors", args=(noted(),))
        else:
            self._send_files(noted())
        # The cache comes last: until here, the source of the weights may need its GPU memory.
        if self.is_asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self.is_asleep = False
        # Not the names in the files, which may hold a tied head a second time.
        if wrong := names.symmetric_difference(self._skeleton.state_dict()) - set(self._skeleton.all_tied_weights_keys):
            listed = ", ".join(sorted(wrong))[:200]
            raise UserError(f"{self._family}: weights missing or unknown: {listed}. Set `sampler.kind: torch`")
        self.policy_version = policy_version

    def sleep(self) -> None:
        """Removes weights and key-value cache from the GPU; does nothing on a CPU or with worker processes."""
        if self._can_sleep and not self.is_asleep:
            # Level 2 discards the weights and level 1 copies them to the CPU; new weights come at the wake-up.
            self._llm.sleep(level=2)
            self.is_asleep = True

    def kept_weights(self) -> dict[str, Tensor]:
        """Returns no weights: the sampler uses the last loaded ones."""
        return {}

    def restore_weights(self, kept: Mapping[str, Tensor]) -> None:
        """Does nothing: see `kept_weights`."""

    def _send_files(self, named_tensors: Iterator[tuple[str, Tensor]]) -> None:
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory(prefix="retrace-weights-") as folder:
            paths = []
            for number, shard in enumerate(in_shards(named_tensors, SHARD_BYTES)):
                paths.append(f"{folder}/{number:05d}.safetensors")
                save_file(shard, paths[-1])
            # Returns when every worker has read them: only then may the folder be deleted.
            self._llm.collective_rpc("receive_files", args=(paths,))

    def close(self) -> None:
        """Frees the engine and ends its processes; keeps a process group that other code created."""
        engine, self._llm = self._llm.llm_engine, None
        with nullcontext() if self._owns_process_group else _process_group_kept():
            engine.engine_core.shutdown()
        del engine
        # Collects the exit status of vLLM's process, which would otherwise stay a zombie.
        multiprocessing.active_children()
        _free_memory()

    def _answer(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[RequestOutput]:
        engine, ids = self._llm.llm_engine, list[str]()
        answers: dict[str, RequestOutput] = {}
        try:
            for token_ids, params in requests:
                ids.append(str(next(self.request_numbers)))
                engine.add_request(ids[-1], {"prompt_token_ids": list(token_ids)}, params)
            while engine.has_unfinished_requests():
                answers |= {output.request_id: output for output in engine.step() if output.finished}
            return [answers[one] for one in ids]
        finally:
            # After an error, requests that are left would be sampled in the next call.
            engine.abort_request([one for one in ids if one not in answers])

    def check_lengths(self, prompts: Sequence[Sequence[int]], more_tokens: int) -> None:
        """Raises UserError if a prompt and so many more tokens do not fit the engine."""
        longest = max(map(len, prompts), default=0)
        limit = self._llm.llm_engine.model_config.max_model_len
        if longest + more_tokens > limit:
            raise UserError(
                f"a prompt of {longest} tokens and a response of {more_tokens} do not fit sampler.max_model_tokens "
                f"= {self.params.max_model_tokens}: raise it, drop long problems, or ask for shorter responses"
            )


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Restores `torch.set_num_threads`, which vLLM's CPU worker replaces for the whole process by an empty function."""
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)


@contextmanager
def _process_group_kept() -> Iterator[None]:
    """Keeps the process group, which vLLM's engine would end at its shutdown for all code in its process."""
    destroy = dist.destroy_process_group
    dist.destroy_process_group = lambda group=None: destroy(group) if group is not None else None
    try:
        yield
    finally:
        dist.destroy_process_group = destroy


@dataclass
class _Request:
    name: Hashable
    trajectory: Trajectory
    output: CompletionOutput | None = None
    """All tokens sampled here, as of the last step."""
    reported: int = 0
    """Number of tokens sampled here that `new_tokens` has returned."""

    def drawn(self) -> PartialResponse:
        """Returns the tokens sampled here."""
        if self.output is None:
            return PartialResponse()
        return PartialResponse(list(self.output.token_ids), first_logprobs(self.output.logprobs))

    def whole(self) -> PartialResponse:
        """Returns the tokens sampled elsewhere, then those sampled here."""
        begun, drawn = self.trajectory.begun, self.drawn()
        return PartialResponse([*begun.token_ids, *drawn.token_ids], [*begun.logprobs, *drawn.logprobs])


class VllmDecoding:
    """Implements `stages.engines.samplers.protocol.Decoding`.

    It uses vLLM's continuous batching, with requests added and aborted between steps. vLLM returns nothing for an
    aborted request, so the tokens of a trajectory so far are taken from the outputs of its steps.

    A trajectory that was begun elsewhere continues with another seed, derived from its seed and the position: vLLM's
    generators cannot be set to a position. So its tokens are reproducible, but differ from uninterrupted sampling.
    """

    def __init__(self, sampler: VllmSampler, engine: Any, settings: SamplingSettings, is_stepped: bool) -> None:
        """If parts are never read, vLLM returns only whole samples: steps are then faster."""
        self._sampler, self._engine, self._settings = sampler, engine, settings
        self._stops, self._policy_version = sampler.stops, sampler.policy_version
        self._gives_parts = is_stepped or self._stops is not None
        self._kv_capacity: int | None = engine.vllm_config.cache_config.kv_cache_size_tokens
        self._requests: dict[str, _Request] = {}
        self._ids: dict[Hashable, str] = {}

    def admit(self, trajectories: Mapping[Hashable, Trajectory]) -> None:
        check_begun(trajectories, self._ids, self._settings)
        limit = self._settings.max_response_tokens
        self._sampler.check_lengths([one.prompt for one in trajectories.values()], limit)
        for name, one in trajectories.items():
            request_id = str(next(self._sampler.request_numbers))
            begun = one.begun.token_ids
            seed = derive_seed(one.seed, len(begun)) if begun else one.seed
            params = self._sampling_params(seed, limit - len(begun))
            # For vLLM, tokens sampled elsewhere are a part of the prompt: it has no other way to continue.
            self._engine.add_request(request_id, {"prompt_token_ids": [*one.prompt, *begun]}, params)
            self._requests[request_id] = _Request(name, one)
            self._ids[name] = request_id

    def _sampling_params(self, seed: int, max_tokens: int) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import RequestOutputKind

        settings = self._settings
        try:
            return SamplingParams(
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                # The safe vocabulary is the min-p rule: p >= e^log_threshold times the largest p.
                min_p=0.0 if settings.log_threshold is None else math.exp(settings.log_threshold),
                max_tokens=max_tokens,
                seed=seed,
                stop_token_ids=list(self._sampler.end_tokens),
                # The end token is one of the stop tokens (below) and is returned; vLLM's rule would use the model's
                # config.
                ignore_eos=True,
                logprobs=settings.likeliest or (self._sampler.vocabulary if settings.keeps_distributions else 0),
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.CUMULATIVE if self._gives_parts else RequestOutputKind.FINAL_ONLY,
            )
        except (ValueError, VLLMValidationError) as error:
            raise UserError(f"vLLM refuses the sampling settings: {error}") from error

    @property
    def is_idle(self) -> bool:
        return not self._requests

    @property
    def load(self) -> Load:
        """Implements the protocol; a sequence counts as running from its first token on."""
        running = [one for one in self._requests.values() if one.output is not None]
        tokens = sum(
            len(one.trajectory.prompt) + len(one.trajectory.begun.token_ids) + len(one.output.token_ids)
            for one in running
        )
        return Load(len(running), len(self._requests) - len(running), tokens, kv_capacity=self._kv_capacity)

    def step(self) -> dict[Hashable, Sample]:
        """Implements the protocol. A sequence may get no token if memory is short: vLLM then lets it wait."""
        ended: dict[Hashable, Sample] = {}
        if self.is_idle:
            return ended
        for output in self._engine.step():
            request = self._requests.get(output.request_id)
            # Withdrawn during its step.
            if request is None:
                continue
            (request.output,) = output.outputs
            drawn, begun = request.output.token_ids, request.trajectory.begun.token_ids
            is_stopped = self._stops is not None and self._stops.end(drawn, begun)
            if is_stopped and not output.finished:
                self._engine.abort_request([output.request_id])
            if is_stopped or output.finished:
                del self._requests[output.request_id], self._ids[request.name]
                ended[request.name] = self._sample(request)
        return ended

    def _sample(self, request: _Request) -> Sample:
        whole = request.whole()
        reason = why_ended(whole.token_ids, self._sampler.end_tokens, self._stops)
        sample = Sample(whole.token_ids, whole.logprobs, reason, self._policy_version)
        if not self._settings.keeps_distributions:
            return sample
        count, logprobs = self._settings.likeliest, request.output.logprobs
        rows = _likeliest_logprobs(logprobs, count) if count else _all_logprobs(logprobs, self._sampler.vocabulary)
        return FullSample(**vars(sample), distributions=rows)

    def new_tokens(self) -> dict[Hashable, PartialResponse]:
        """Implements the protocol; leaves out trajectories without new tokens."""
        new: dict[Hashable, PartialResponse] = {}
        for request in self._requests.values():
            drawn, before = request.drawn(), request.reported
            request.reported = len(drawn.token_ids)
            if before < request.reported:
                new[request.name] = PartialResponse(drawn.token_ids[before:], drawn.logprobs[before:])
        return new

    def withdraw(self, names: Iterable[Hashable]) -> dict[Hashable, PartialResponse]:
        ids = [self._ids.pop(name) for name in names if name in self._ids]
        self._engine.abort_request(ids)
        gone = [self._requests.pop(request_id) for request_id in ids]
        return {request.name: request.whole() for request in gone}

    def close(self) -> None:
        self.withdraw(list(self._ids))


def first_logprobs(flat: Any) -> list[float]:
    """Returns the log-prob of the token itself at each position; the most probable token may follow it."""
    places = zip(flat.start_indices, flat.end_indices, strict=True)
    return [flat.logprobs[start] for start, end in places if end > start]


def _all_logprobs(flat: Any, vocabulary: int) -> Tensor:
    """Returns log-probs [positions, vocabulary]; the sampled token is listed first and at its rank, with one value."""
    rows = torch.full((len(flat.start_indices), vocabulary), -torch.inf)
    for row, start, end in zip(rows, flat.start_indices, flat.end_indices, strict=True):
        row[torch.tensor(flat.token_ids[start:end])] = torch.tensor(flat.logprobs[start:end])
    return rows


def _likeliest_logprobs(flat: Any, count: int) -> Tensor:
    """Returns the `count` likeliest tokens of each position as `likeliest_tokens` does; they follow the sampled one."""
    places = [range(end - count, end) for end in flat.end_indices]
    columns = ([flat.logprobs[place] for place in row] + [flat.token_ids[place] for place in row] for row in places)
    return torch.tensor(list(columns), dtype=torch.float32).view(len(places), 2 * count)


def check_policy(
    policy_folder: Path, config: PretrainedConfig, max_model_tokens: int, prompt: PlainPrompt | ChatPrompt | None = None
) -> tuple[int, ...]:
    """Returns the end tokens. Raises UserError if tokenizer, config and `sampler.max_model_tokens` do not fit."""
    tokenizer = load_tokenizer(policy_folder)
    check_tokenizer_fits(tokenizer, config.vocab_size, policy_folder)
    if max_model_tokens > config.max_position_embeddings:
        raise UserError(
            f"sampler.max_model_tokens = {max_model_tokens}, but the policy {policy_folder} has "
            f"{config.max_position_embeddings} positions: lower it to that"
        )
    if not weight_names(policy_folder):
        raise UserError(f"{policy_folder} holds no safetensors weights: run `dvc repro base` to make a policy")
    return read_end_tokens(policy_folder, tokenizer, prompt)


def transformers_reference(policy_folder: Path, device: torch.device, most_tokens: int) -> Reference | None:
    """Returns the reference for vLLM's log-probs. Raises UserError for weights that do not fit the architecture, or
    are not finite.

    Returns None and logs a line if the weights in float32 would fill more than half of the free memory.
    """
    stored = sum(path.stat().st_size for path in policy_folder.glob("*.safetensors"))
    # Stored with at least two bytes per number, so float32 takes at most twice as much.
    if 2 * stored > psutil.virtual_memory().available / 2:
        say(f"{policy_folder} is too large for this machine's memory to compare vLLM's log-probs with transformers'")
        return None
    model = load_model(policy_folder, torch.float32)
    return reference_of(model, policy_folder, device, "vLLM", most_tokens)


def weight_names(policy_folder: Path) -> set[str]:
    """Returns the names of the weights in the policy's files."""
    from safetensors import safe_open

    names: set[str] = set()
    for path in sorted(policy_folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            names.update(tensors.keys())
    return names
