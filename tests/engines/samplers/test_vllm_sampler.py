"""Real vLLM: log-probs compared with the trainer's forward pass, new weights in the live engine, and bad input."""

import importlib.util
import json
import math
import multiprocessing
import os
import sys
from contextlib import nullcontext
from dataclasses import replace

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: `make test` installs it", allow_module_level=True)

from stages.algorithms.token_statistics import likeliest_tokens, listed_statistics, safe_vocabulary
from stages.engines.environments.frames import make_frame
from stages.engines.environments.pool import EnvironmentPool
from stages.engines.environments.turn_sampler import TurnSampler
from stages.engines.policies.forward_probe import check_engine_forward
from stages.engines.policies.language_model import language_model
from stages.engines.policies.lora import with_lora
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.policy_folders import load_config, load_model, random_model
from stages.engines.policies.tokenizers import decode_response
from stages.engines.replicas.replica import SyncError
from stages.engines.samplers import vllm_sampler, vllm_weights
from stages.engines.samplers.forced_ends import ForcedEndSampler
from stages.engines.samplers.protocol import (
    PartialResponse,
    SamplingSettings,
    StopReason,
    Trajectory,
    sample_trajectories,
)
from stages.engines.samplers.stop_strings import StopStrings
from stages.engines.samplers.vllm_sampler import VllmSampler, check_policy, transformers_reference
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.foundations.errors import UserError
from stages.foundations.params import ForcedEnd, PlainPrompt
from stages.rl_round.loop.weight_sync import WeightSyncCheck
from stages.rl_round.params import WeightSyncCheckParams
from tests.engines.samplers.test_stop_strings import first_end
from tests.fakes import environments
from tests.fakes.drawing import sample_numbered
from tests.fakes.engine_params import ADAMW as SLOW_ADAMW
from tests.fakes.engine_params import LORA, TORCH_TRAINER, VLLM_SAMPLER
from tests.fakes.processes import assert_all_end
from tests.fakes.tiny_policy import VOCABULARY_TOKENS, byte_tokenizer, write_tiny_policy

ADAMW = SLOW_ADAMW.model_copy(update={"learning_rate": 0.02, "weight_decay": 0.0})
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=16, log_threshold=None)
PROMPTS = [[36, 80, 78], [81], [86, 85, 70, 222, 19, 12]]
EXACT = 1e-4
LAYERS = dict(
    vocab_size=VOCABULARY_TOKENS,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
    initializer_range=0.2,
    bos_token_id=None,
    eos_token_id=0,
    pad_token_id=1,
)


def write_family(folder, kind, **config):
    """Writes a policy of another family, with the weight names of the hub."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random_model(kind, **{**LAYERS, **config}).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


class Pair:
    """A live vLLM engine and a trainer of the same policy."""

    def __init__(self, policy, **changes):
        self.sampler = VllmSampler(VLLM_SAMPLER.model_copy(update=changes), policy)
        self.trainer = TorchTrainer(TORCH_TRAINER, ADAMW, 1.0, language_model(policy, TORCH_TRAINER))
        self.version = 0

    def train_and_sync(self):
        """Trains one step on random tokens, large enough to be visible, then syncs."""
        rows = [TokenSequence([5, 6], torch.randint(2, 258, (20,)).tolist()) for _ in range(4)]
        self.trainer.update([pack(rows)], lambda statistics, _: (-statistics.logprobs.mean(), {}), 1.0)
        self.version += 1
        self.sampler.load_weights(self.trainer.named_weights(), self.version)

    def gap(self, prompts, responses, logprobs):
        """Returns the largest difference between `logprobs` and the trainer's."""
        batch = pack([TokenSequence(*pair) for pair in zip(prompts, responses, strict=True)])
        expected = self.trainer.evaluate(batch).logprobs[batch.response_mask.bool()]
        return float((torch.tensor([value for row in logprobs for value in row]) - expected).abs().max())

    @torch.no_grad()
    def logits(self, prompt, sample):
        """Returns the trainer's logits before each token of the sample."""
        return self.trainer.model.module(torch.tensor([[*prompt, *sample.token_ids]])).logits[0, len(prompt) - 1 : -1]

    def gap_of_probe(self):
        responses = [[7, 8, 9, 10], [11, 12], [200, 100, 50]]
        return self.gap(PROMPTS, responses, self.sampler.logprobs(PROMPTS, responses))


def test_many_long_prompts_at_once_are_answered_and_the_process_is_left_as_it_was(tmp_path):
    """More prompt tokens than one step takes: vLLM must not split a prompt, which breaks seeded requests on CPU.

    A DeepSpeed trainer of the same process outlives the sampler.
    """
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    from tests.engines.deepspeed_ranks import deepspeed_trainer, micro_batches, weighted_loss

    policy = write_tiny_policy(tmp_path / "policy")
    trainer = deepspeed_trainer(2, policy)
    threads = torch.get_num_threads()
    children = len(psutil.Process().children(recursive=True))
    sampler = VllmSampler(VLLM_SAMPLER.model_copy(update={"max_model_tokens": 400}), policy)
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1, "vLLM must not keep trainers from setting their threads"
    torch.set_num_threads(threads)
    trainer.update(micro_batches(0), weighted_loss, 1.0)
    sampler.load_weights(trainer.named_weights(), 1)
    prompts = [[2 + (row + place) % 250 for place in range(300)] for row in range(32)]
    answers = sample_numbered(sampler, prompts, 1, replace(SETTINGS, max_response_tokens=4), seed=0)
    sampler.close()
    assert [len(samples) for samples in answers] == [1] * 32
    assert len(psutil.Process().children(recursive=True)) == children
    trainer.update(micro_batches(1), weighted_loss, 1.0)
    trainer.close()
    assert not torch.distributed.is_initialized()


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm") / "policy"
    pair = Pair(write_tiny_policy(folder, seed=3, tie=request.param, initializer_range=0.2))
    yield pair
    pair.sampler.close()


def flat(drawn):
    """Returns prompts and samples, one row for each response."""
    return [(prompt, sample) for prompt, samples in zip(PROMPTS, drawn, strict=True) for sample in samples]


def test_sampled_logprobs_are_the_trainers(pair):
    rows = flat(sample_numbered(pair.sampler, PROMPTS, 5, SETTINGS, seed=1))
    prompts, responses = [prompt for prompt, _ in rows], [sample.token_ids for _, sample in rows]
    assert pair.gap(prompts, responses, [sample.logprobs for _, sample in rows]) < EXACT
    assert pair.gap(prompts, responses, pair.sampler.logprobs(prompts, responses)) < EXACT


def test_weights_pushed_into_the_live_engine_are_used(pair):
    before = sample_numbered(pair.sampler, PROMPTS, 4, SETTINGS, seed=2)
    pair.train_and_sync()
    assert pair.sampler.policy_version == pair.version
    assert sample_numbered(pair.sampler, PROMPTS, 4, SETTINGS, seed=2) != before
    assert pair.gap_of_probe() < EXACT
    pair.train_and_sync()
    assert pair.gap_of_probe() < EXACT


def test_the_engine_keeps_its_own_copy_of_the_weights(pair):
    pair.train_and_sync()
    before = sample_numbered(pair.sampler, PROMPTS, 2, SETTINGS, seed=3)
    with torch.no_grad():
        for weight in pair.trainer.model.module.parameters():
            weight.mul_(1.5)
    assert sample_numbered(pair.sampler, PROMPTS, 2, SETTINGS, seed=3) == before


def test_the_probe_of_the_rl_round_fires_on_a_stale_tied_head(pair, monkeypatch):
    params = WeightSyncCheckParams(sequences=3, max_logprob_gap=EXACT)
    probe = WeightSyncCheck.drawn(params, PROMPTS, 16, pair.sampler, seed=0)
    pair.train_and_sync()
    assert probe.check(pair.sampler, probe.trainer_side(pair.trainer)) < EXACT
    with monkeypatch.context() as patched:
        patched.setattr(vllm_weights, "repack_tied_head", lambda model: None)
        pair.train_and_sync()
        is_tied = pair.trainer.model.module.config.tie_word_embeddings
        assert (pair.gap_of_probe() > 100 * EXACT) == is_tied
        with pytest.raises(SyncError, match="differs by") if is_tied else nullcontext():
            probe.check(pair.sampler, probe.trainer_side(pair.trainer))
    pair.train_and_sync()
    assert probe.check(pair.sampler, probe.trainer_side(pair.trainer)) < EXACT


def test_turns_with_an_environment_have_the_trainers_log_probs(pair, monkeypatch):
    """In waves and as they come; the observations are read in the prompt of the next turn."""
    # Many tokens end a turn.
    ends = [0, *range(200, 258)]
    monkeypatch.setattr(pair.sampler, "end_tokens", ends)
    prompt = PlainPrompt(kind="plain", template="{problem}", environment=environments.params())
    tokenizer, frame = byte_tokenizer(), make_frame(byte_tokenizer(), prompt, ends)
    pool = EnvironmentPool(prompt.environment, environments.answer)
    sampler = TurnSampler(pair.sampler, pool, tokenizer, frame, ends)
    problem = {"problem_id": "p", "script": "talk"}
    asked = [Trajectory(PROMPTS[number % 3], number, problem=problem) for number in range(9)]
    settings = replace(SETTINGS, max_response_tokens=40)
    forgotten, forget = [], pair.sampler._forget_prefixes
    monkeypatch.setattr(pair.sampler, "_forget_prefixes", lambda: (forgotten.append(1), forget()))
    drawn = sample_trajectories(sampler, asked, settings)
    # Only before the first wave: later waves read the turns before them from the cache.
    assert len(forgotten) == 1
    assert drawn == sample_trajectories(sampler, asked, settings)
    assert len(forgotten) == 2
    decoding = sampler.open(settings)
    decoding.admit(dict(enumerate(asked)))
    ended = {}
    while not decoding.is_idle:
        ended |= decoding.step()
    decoding.close()
    pool.close()
    assert [one.token_ids for one in drawn] == [ended[number].token_ids for number in range(9)]
    assert sum(len(one.episode.observed) for one in drawn) > 5
    for one, sample in zip(asked, drawn, strict=True):
        batch = pack([TokenSequence(one.prompt, sample.token_ids)])
        expected = pair.trainer.evaluate(batch).logprobs[0].tolist()
        for first, end in sample.episode.observed:
            assert tokenizer.decode(sample.token_ids[first:end])[0] == ":"
            expected[first:end] = [0.0] * (end - first)
        assert sample.logprobs == pytest.approx(expected, abs=EXACT)


def test_a_thought_is_asked_to_end_with_tokens_that_vllm_did_not_sample(pair, tmp_path):
    tokenizer = byte_tokenizer()
    mark, budgets = tokenizer.decode([70]), (6, 9)
    forced = ForcedEnd(kind="phrase", thinking_tokens=budgets, mark=mark, text=f" so{mark}")
    sampler = ForcedEndSampler(pair.sampler, forced, write_tiny_policy(tmp_path / "policy"))
    asked = [Trajectory(PROMPTS[number % 3], number) for number in range(12)]
    drawn = sample_trajectories(sampler, asked, SETTINGS)
    assert drawn == sample_trajectories(sampler, asked, SETTINGS)
    for one, sample in zip(asked, drawn, strict=True):
        expected = pair.trainer.evaluate(pack([TokenSequence(one.prompt, sample.token_ids)])).logprobs[0].tolist()
        budget = budgets[0] + one.seed % 4
        if sample.observed:
            assert sample.observed == ((budget, budget + 4),) and mark not in tokenizer.decode(
                sample.token_ids[:budget]
            )
            assert tokenizer.decode(sample.token_ids[budget : budget + 4]) == forced.text
            expected[budget : budget + 4] = [0.0] * 4
        else:
            assert len(sample.token_ids) <= budget or mark in tokenizer.decode(sample.token_ids[:budget])
        assert sample.logprobs == pytest.approx(expected, abs=EXACT)
    assert sum(len(sample.observed) for sample in drawn) > 6


def test_a_partial_sync_is_refused(pair):
    name, weight = next(pair.trainer.named_weights())
    with pytest.raises(UserError, match=r"llama\): weights missing or unknown: .*Set `sampler.kind: torch`"):
        pair.sampler.load_weights([(name, weight)], 99)
    assert pair.sampler.policy_version == pair.version
    pair.train_and_sync()
    assert pair.gap_of_probe() < EXACT


def test_the_seed_decides_and_samples_differ(pair):
    first, again, other = (sample_numbered(pair.sampler, PROMPTS, 6, SETTINGS, seed) for seed in (7, 7, 8))
    assert first == again != other
    assert all(len({tuple(sample.token_ids) for sample in samples}) > 1 for samples in first)


def test_a_trajectory_is_drawn_the_same_alone_and_beside_others(pair):
    asked = [Trajectory(prompt, 10 * place + number) for place, prompt in enumerate(PROMPTS) for number in range(3)]
    together = sample_trajectories(pair.sampler, asked, SETTINGS)
    backwards = sample_trajectories(pair.sampler, asked[::-1], SETTINGS)[::-1]
    assert [one.token_ids for one in together] == [one.token_ids for one in backwards]
    assert sample_trajectories(pair.sampler, asked[4:5], SETTINGS)[0].token_ids == together[4].token_ids
    assert {one.policy_version for one in together} == {pair.version}


def test_a_caller_may_stop_in_the_middle_of_a_stream(pair):
    asked = [Trajectory(PROMPTS[0], number) for number in range(8)]
    whole = sample_trajectories(pair.sampler, asked, SETTINGS)
    stream = pair.sampler.stream(asked, SETTINGS)
    index, first = next(stream)
    stream.close()
    assert first == whole[index] and sample_trajectories(pair.sampler, asked, SETTINGS) == whole


def test_logprobs_after_top_k_and_top_p_are_the_trainers_over_the_listed_tokens(pair):
    settings = replace(SETTINGS, temperature=0.8, top_k=6, top_p=0.7, keeps_distributions=True, likeliest=8)
    sizes = set()
    for prompt, sample in flat(sample_numbered(pair.sampler, PROMPTS, 8, settings, seed=11)):
        logits, ids = pair.logits(prompt, sample), torch.tensor(sample.token_ids)
        found = listed_statistics(logits, torch.eye(logits.shape[1]), ids, sample.distributions, 0.8)
        assert sample.logprobs == pytest.approx(found.logprobs.tolist(), abs=EXACT)
        assert not found.outside.any()
        sizes |= set((sample.distributions[:, :8] > -torch.inf).sum(-1).tolist())
    assert max(sizes) <= 6 and len(sizes) > 2, "the sets are of the two cuts together"


EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)


def sync_families(folder):
    """Qwen3-MoE has separate experts in its files, and SmolLM3 runs in transformers' classes.

    SmolLM3's file has its tied head. A model loaded before vLLM used its class can still be called.
    """
    for kind, config in (("qwen3_moe", {**EXPERTS, "tie_word_embeddings": False}), ("smollm3", {})):
        policy = write_family(folder / kind, kind, **config)
        weights = load_file(policy / "model.safetensors")
        assert ("lm_head.weight" in weights) == (kind == "qwen3_moe")
        weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"].clone())
        save_file(weights, policy / "model.safetensors", metadata={"format": "pt"})
        earlier, ids = load_model(policy, torch.float32), torch.tensor([PROMPTS[2]])
        before = earlier(ids).logits
        pair = Pair(policy)
        assert torch.allclose(earlier(ids).logits, before, atol=EXACT)
        for _ in range(3):
            rows = flat(sample_numbered(pair.sampler, PROMPTS, 3, SETTINGS, seed=1))
            prompts, responses = [prompt for prompt, _ in rows], [sample.token_ids for _, sample in rows]
            assert pair.gap(prompts, responses, [sample.logprobs for _, sample in rows]) < EXACT
            pair.train_and_sync()
        pair.sampler.close()


@pytest.mark.slow
def test_families_that_keep_their_weights_in_another_way_are_synced(tmp_path):
    # A separate process: vLLM sets up groups for experts only if the first engine of the process has some.
    child = multiprocessing.get_context("spawn").Process(target=sync_families, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_family_that_vllm_cannot_read_is_refused(tmp_path, monkeypatch):
    """An example is Gemma 3 with its vision part if torchvision is not installed."""
    policy = write_tiny_policy(tmp_path / "policy")
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchForCausalLM"]}))
    with pytest.raises(UserError, match=r"vLLM does not take .*\(NoSuchForCausalLM, llama\).*Set `sampler\.kind"):
        VllmSampler(VLLM_SAMPLER, policy)


def test_stop_strings_end_responses_also_where_another_sampler_began_them(pair, monkeypatch):
    """Sampling is greedy, so continued responses get the same tokens as uninterrupted ones."""
    greedy = replace(SETTINGS, temperature=0.0, max_response_tokens=30)
    tokenizer, asked = byte_tokenizer(), {number: Trajectory([number], 0) for number in range(40, 70)}
    plain = dict(zip(asked, sample_trajectories(pair.sampler, list(asked.values()), greedy), strict=True))
    texts = [decode_response(tokenizer, one.token_ids) for one in plain.values()]
    strings = [part for text in texts for part in (text[2:4], text[9:11]) if len(part) == 2 and "\ufffd" not in part][
        :3
    ]
    ends = {name: first_end(tokenizer, one.token_ids, strings) for name, one in plain.items()}
    monkeypatch.setattr(pair.sampler, "stops", StopStrings(tokenizer, strings))
    stopped = dict(zip(asked, sample_trajectories(pair.sampler, list(asked.values()), greedy), strict=True))
    for name, one in stopped.items():
        assert one.token_ids == plain[name].token_ids[: ends[name]]
        assert (one.stop_reason is StopReason.STOP_STRING) == (ends[name] is not None)
    ended = {name: one for name, one in stopped.items() if ends[name]}
    begun = {name: PartialResponse(one.token_ids[:-1], one.logprobs[:-1]) for name, one in ended.items()}
    decoding = pair.sampler.open(greedy)
    decoding.admit({name: replace(asked[name], begun=one) for name, one in begun.items()})
    moved = decoding.step()
    assert decoding.is_idle and len(moved) >= 2
    assert {name: one.token_ids for name, one in moved.items()} == {name: one.token_ids for name, one in ended.items()}
    assert not any(one.is_truncated for one in moved.values())
    decoding.close()


def test_greedy_takes_the_most_probable_token(pair):
    drawn = sample_numbered(pair.sampler, PROMPTS, 2, replace(SETTINGS, temperature=0.0), seed=5)
    for prompt, (sample, twin) in zip(PROMPTS, drawn, strict=True):
        assert sample == twin
        assert pair.logits(prompt, sample).argmax(-1).tolist() == sample.token_ids


def test_responses_end_at_the_end_token_or_at_the_limit(pair):
    end = pair.sampler.end_tokens[0]
    settings = replace(SETTINGS, max_response_tokens=40, temperature=2.0)
    ended = [sample for _, sample in flat(sample_numbered(pair.sampler, PROMPTS, 60, settings, 6))]
    assert {sample.stop_reason for sample in ended} == {StopReason.END_OF_SEQUENCE, StopReason.MAX_TOKENS}
    for sample in ended:
        assert len(sample.logprobs) == len(sample.token_ids) <= 40
        assert end not in sample.token_ids[:-1]
        assert (sample.token_ids[-1] == end) == (sample.stop_reason is StopReason.END_OF_SEQUENCE)
        assert sample.is_truncated == (sample.token_ids[-1] != end)
        assert len(sample.token_ids) == 40 or not sample.is_truncated


def test_every_end_token_of_the_policy_ends_a_response(pair, tmp_path, monkeypatch):
    policy = write_tiny_policy(tmp_path)
    (policy / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 70]}))
    assert check_policy(policy, load_config(policy), 64) == (0, 70)
    monkeypatch.setattr(pair.sampler, "end_tokens", tuple(range(70)))
    drawn = [sample for _, sample in flat(sample_numbered(pair.sampler, PROMPTS, 20, SETTINGS, seed=9))]
    assert all(token >= 70 for sample in drawn for token in sample.token_ids[:-1])
    assert {sample.token_ids[-1] < 70 for sample in drawn if not sample.is_truncated} == {True}


def test_progress_is_shown_with_a_label_only(pair, capsys, monkeypatch):
    monkeypatch.setattr("stages.observe.progress.SECONDS_BETWEEN_LINES", 0.0)
    sample_numbered(pair.sampler, PROMPTS, 1, SETTINGS, seed=1)
    assert capsys.readouterr().err == ""
    sample_numbered(pair.sampler, PROMPTS, 1, SETTINGS, seed=1, label="draws")
    assert "draws: 0 of 3 responses" in capsys.readouterr().err


def test_prompts_that_do_not_fit_are_refused_before_any_work(pair):
    with pytest.raises(UserError, match=r"60 tokens .*max_model_tokens = 64"):
        sample_numbered(pair.sampler, [[5] * 60], 1, SETTINGS, seed=1)
    assert pair.sampler.logprobs([[5] * 10], [[6] * 54])[0][0] < 0, "the longest sequence itself can be scored"


def test_settings_that_vllm_refuses_are_the_users_mistake(pair):
    with pytest.raises(UserError, match="temperature must be in"):
        sample_numbered(pair.sampler, PROMPTS, 1, replace(SETTINGS, temperature=2.5), seed=1)


def test_responses_may_be_empty_or_none_at_all(pair):
    assert pair.sampler.logprobs([[5, 6]], [[]]) == [[]]
    assert sample_numbered(pair.sampler, [], 4, SETTINGS, seed=1) == []


@pytest.mark.slow
def test_worker_processes_get_weights_through_files(tmp_path, monkeypatch):
    policy = write_tiny_policy(tmp_path / "policy", seed=3)
    variables = {name: os.environ.get(name) for name in ("RETRACE_SAMPLER_OWNER", "LOCAL_WORLD_SIZE", "LD_PRELOAD")}
    pair = Pair(policy, tensor_parallel=2)
    assert {name: os.environ.get(name) for name in variables} == variables, "the verifier and others read them too"
    before = sample_numbered(pair.sampler, PROMPTS, 2, SETTINGS, seed=2)
    monkeypatch.setattr("stages.engines.samplers.vllm_sampler.SHARD_BYTES", 50_000)
    pair.train_and_sync()
    assert sample_numbered(pair.sampler, PROMPTS, 2, SETTINGS, seed=2) != before
    assert pair.gap_of_probe() < EXACT
    processes = [child for child in psutil.Process().children(recursive=True) if "VLLM" in child.name()]
    assert processes
    pair.sampler.close()
    assert_all_end(processes)


@pytest.mark.parametrize(
    ("sizes", "said"), [({"vocab": 200}, "258 tokens but the model embeds 200"), ({}, "has 512 positions")]
)
def test_a_policy_that_does_not_fit_is_refused(tmp_path, sizes, said):
    policy = write_tiny_policy(tmp_path / "policy", **sizes)
    params = VLLM_SAMPLER if sizes else VLLM_SAMPLER.model_copy(update={"max_model_tokens": 513})
    with pytest.raises(UserError, match=said):
        VllmSampler(params, policy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_that_computes_another_function_is_refused(pair, tmp_path, dtype):
    """The engine has one policy, and transformers' log-probs are of another."""
    folder = write_tiny_policy(tmp_path, seed=4, initializer_range=0.2)
    reference = transformers_reference(folder, torch.device("cpu"), VLLM_SAMPLER.max_model_tokens)
    with pytest.raises(UserError, match=r"vLLM does not compute what transformers .* LlamaForCausalLM \(llama\)"):
        check_engine_forward(reference, "vLLM", dtype, pair.sampler.logprobs)


def test_weights_that_are_not_the_architectures_are_refused_before_vllm_starts(tmp_path):
    """vLLM alone would sample from NaN."""
    folder = write_tiny_policy(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"1 not finite \(model\.norm\.weight\)"):
        VllmSampler(VLLM_SAMPLER, folder)


def test_a_folder_without_a_policy_or_a_missing_vllm_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="dvc repro base"):
        VllmSampler(VLLM_SAMPLER, tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match="needs the package vllm of group vllm, which is not installed"):
        VllmSampler(VLLM_SAMPLER, tmp_path)


def test_kept_distributions_are_the_trainers(pair):
    settings = replace(SETTINGS, temperature=0.8, log_threshold=-1.5, keeps_distributions=True)
    for prompt, sample in flat(sample_numbered(pair.sampler, PROMPTS, 3, settings, seed=12)):
        rows = sample.distributions
        assert rows[torch.arange(len(rows)), sample.token_ids].tolist() == pytest.approx(sample.logprobs, abs=1e-6)
        heated = pair.logits(prompt, sample) / 0.8
        assert (safe_vocabulary(heated, -1.5) == rows.isfinite()).float().mean() > 0.999
        expected = heated.masked_fill(~rows.isfinite(), -torch.inf).log_softmax(-1)
        assert torch.allclose(rows.exp(), expected.exp(), atol=EXACT)


def test_likeliest_tokens_are_those_of_the_whole_distributions_whatever_the_vocabulary(pair, monkeypatch):
    settings = replace(SETTINGS, temperature=0.8, keeps_distributions=True)
    whole = flat(sample_numbered(pair.sampler, PROMPTS, 3, settings, seed=12))
    monkeypatch.setattr(vllm_sampler, "LARGEST_KEPT_VOCABULARY", 257)
    some = flat(sample_numbered(pair.sampler, PROMPTS, 3, replace(settings, likeliest=7), seed=12))
    for (_, one), (_, other) in zip(whole, some, strict=True):
        assert one.token_ids == other.token_ids
        # The ids as they are: two tokens of equal probability may change places.
        values, ids = other.distributions.chunk(2, dim=-1)
        assert torch.allclose(values, likeliest_tokens(one.distributions, 7)[:, :7], atol=1e-6)
        assert torch.allclose(one.distributions.gather(-1, ids.long()), values, atol=1e-6)


def test_distributions_over_a_large_vocabulary_are_refused(pair, monkeypatch):
    monkeypatch.setattr(vllm_sampler, "LARGEST_KEPT_VOCABULARY", 257)
    with pytest.raises(UserError, match=r"258 tokens, more than the 257 .*set sampler.kind torch"):
        sample_numbered(pair.sampler, PROMPTS, 1, replace(SETTINGS, keeps_distributions=True), seed=1)


def test_trajectories_come_late_are_withdrawn_and_go_on(pair):
    """Moved trajectories have the trainer's log-probs; the others have the tokens of a stream."""
    asked = {number: Trajectory(PROMPTS[number % 3], 50 + number) for number in range(6)}
    settings = replace(SETTINGS, max_response_tokens=30)
    whole = sample_trajectories(pair.sampler, list(asked.values()), settings)
    decoding = pair.sampler.open(settings)
    decoding.admit({number: asked[number] for number in range(4)})
    ended, streamed = {}, {}
    for _ in range(5):
        ended |= decoding.step()
        for name, new in decoding.new_tokens().items():
            streamed.setdefault(name, []).extend(new.token_ids)
    decoding.admit({number: asked[number] for number in (4, 5)})
    ended |= decoding.step()
    begun = decoding.withdraw([0, 1, 2, "nobody"])
    assert begun and all(4 <= len(one.token_ids) == len(one.logprobs) for one in begun.values())
    for name, one in begun.items():
        assert list(one.token_ids) == whole[name].token_ids[: len(one.token_ids)]
        assert streamed[name] == list(one.token_ids)[: len(streamed[name])]
    with pytest.raises(RuntimeError, match="in flight"):
        pair.sampler.load_weights(pair.trainer.named_weights(), 99)
    decoding.admit({name: replace(asked[name], begun=one) for name, one in begun.items()})
    while not decoding.is_idle:
        ended |= decoding.step()
    assert ended.keys() == asked.keys()
    for name, sample in ended.items():
        kept = len(begun[name].token_ids) if name in begun else 30
        assert sample.token_ids[:kept] == whole[name].token_ids[:kept]
        assert len(sample.token_ids) <= 30 and (len(sample.token_ids) == 30 or not sample.is_truncated)
    moved = [ended[name] for name in begun]
    prompts = [asked[name].prompt for name in begun]
    assert pair.gap(prompts, [one.token_ids for one in moved], [one.logprobs for one in moved]) < EXACT
    pair.train_and_sync()


def test_a_closed_decoding_leaves_the_engine_empty(pair):
    decoding = pair.sampler.open(SETTINGS)
    decoding.admit({number: Trajectory(PROMPTS[0], number) for number in range(40)})
    decoding.step()
    assert decoding.load.running == 32 and decoding.load.waiting == 8 and decoding.load.kv_tokens == 32 * 4
    cache = pair.sampler._llm.llm_engine.vllm_config.cache_config
    # vLLM counts in sequences of the greatest length, which may leave a part of a block empty.
    assert 32 * 4 < decoding.load.kv_capacity <= cache.num_gpu_blocks * cache.block_size
    with pytest.raises(RuntimeError, match="in flight"):
        pair.sampler.open(SETTINGS)
    decoding.close()
    assert decoding.is_idle and decoding.step() == {}
    pair.train_and_sync()
    assert pair.gap_of_probe() < EXACT


def test_a_sampler_that_sleeps_wakes_around_the_next_weights(pair, monkeypatch):
    """vLLM cannot sleep on a CPU, so the test records the engine's calls; all between them is real."""
    calls = []
    engine = pair.sampler._llm
    monkeypatch.setattr(pair.sampler, "_can_sleep", True)
    monkeypatch.setattr(engine, "sleep", lambda level: calls.append(("sleep", level)))
    monkeypatch.setattr(engine, "wake_up", lambda tags: calls.append(("wake_up", *tags)))
    load = engine.collective_rpc
    monkeypatch.setattr(engine, "collective_rpc", lambda name, **others: (calls.append(name), load(name, **others)))
    pair.sampler.sleep()
    pair.sampler.sleep()
    assert pair.sampler.is_asleep
    pair.train_and_sync()
    assert calls == [("sleep", 2), ("wake_up", "weights"), "receive_tensors", ("wake_up", "kv_cache")]
    assert not pair.sampler.is_asleep and pair.gap_of_probe() < EXACT


def test_lora_arrives_merged(pair, tmp_path, monkeypatch):
    pytest.importorskip("peft", reason="peft is not installed")
    policy = write_tiny_policy(tmp_path, tie=pair.trainer.model.module.config.tie_word_embeddings)
    model = with_lora(language_model(policy, TORCH_TRAINER), LORA, 0)
    monkeypatch.setattr(pair, "trainer", TorchTrainer(TORCH_TRAINER, ADAMW, 1.0, model))
    for _ in range(2):
        pair.train_and_sync()
        assert pair.gap_of_probe() < EXACT
    monkeypatch.undo()
    pair.train_and_sync()
