"""vLLM in the trainer's process on one GPU: it sleeps and wakes, keeps its graphs over a sync, and repeats itself."""

import importlib.metadata
import importlib.util

import pytest
import torch

from stages.engines.policies.language_model import language_model
from stages.engines.policies.lora import with_lora
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.statistics import policy_statistics
from stages.engines.samplers.params import VllmSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, Trajectory, sample_trajectories
from stages.engines.trainers.params import AdamwParams, TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from tests.fakes.engine_params import LORA
from tests.fakes.tiny_policy import tiny_model, write_tiny_policy

HAS_VLLM = importlib.util.find_spec("vllm") is not None
VLLM = importlib.metadata.version("vllm") if HAS_VLLM and torch.cuda.is_available() else "0.0"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")]
SAMPLER = VllmSamplerParams(
    kind="vllm",
    dtype="bfloat16",
    max_model_tokens=512,
    max_sequences=64,
    memory_fraction=0.3,
    kv_cache_gib=1.0,
    tensor_parallel=1,
    enforce_eager=False,
)
TRAINER = TorchTrainerParams(
    kind="torch", device="cuda", dtype="mixed", threads=1, micro_batch_tokens=4096, gradient_checkpointing=False
)
ADAMW = AdamwParams(kind="adamw", learning_rate=0.02, beta1=0.9, beta2=0.95, weight_decay=0.0)
SETTINGS = SamplingSettings(1.0, 1.0, 0, 64, None)
JOBS = [Trajectory([36, 80, 78 + number % 3], 1000 + number) for number in range(32)]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Returns trainer and engine on one GPU, in the order of a round; its free bytes before and after the engine."""
    from stages.engines.samplers.vllm_sampler import VllmSampler

    policy = write_tiny_policy(tmp_path_factory.mktemp("policy"), seed=3, initializer_range=0.2, hidden=256)
    trainer = TorchTrainer(TRAINER, ADAMW, 1.0, language_model(policy, TRAINER))
    before = torch.cuda.mem_get_info()[0]
    sampler = VllmSampler(SAMPLER, policy)
    sampler.load_weights(trainer.named_weights(), 0)
    yield trainer, sampler, before - torch.cuda.mem_get_info()[0]
    sampler.close()
    trainer.close()


def tokens(sampler):
    return [sample.token_ids for sample in sample_trajectories(sampler, JOBS, SETTINGS)]


def assert_close(trainer, sampler):
    """The engine is about as far from float32 as the trainer, which also computes in bfloat16."""
    samples = sample_trajectories(sampler, JOBS, SETTINGS)
    batch = pack([TokenSequence(job.prompt, one.token_ids) for job, one in zip(JOBS, samples, strict=True)])
    counted = batch.response_mask.bool()
    own = trainer.evaluate(batch).logprobs.cpu()[counted]
    exact = tiny_model(seed=3, initializer_range=0.2, hidden=256)
    exact.load_state_dict({name: weight.float().cpu() for name, weight in trainer.named_weights()}, strict=False)
    with torch.no_grad():
        expected = policy_statistics(exact, batch).logprobs[counted]
    found = torch.tensor([value for one in samples for value in one.logprobs])
    assert (found - expected).abs().mean() < 1.5 * (own - expected).abs().mean() < 0.2


def test_equal_seeds_repeat_their_responses(both):
    _, sampler, _ = both
    assert tokens(sampler) == tokens(sampler)


def test_sleep_frees_the_card_and_new_weights_wake_it(both):
    trainer, sampler, held = both
    drawn, awake = tokens(sampler), torch.cuda.mem_get_info()[0]
    sampler.sleep()
    assert torch.cuda.mem_get_info()[0] - awake >= 0.9 * held
    sampler.load_weights(trainer.named_weights(), 1)
    assert tokens(sampler) == drawn
    assert_close(trainer, sampler)


def test_graphs_see_the_weights_of_a_sync(both):
    trainer, sampler, _ = both
    rows = [TokenSequence([5, 6], torch.randint(2, 258, (20,)).tolist()) for _ in range(4)]
    drawn = tokens(sampler)
    trainer.update([pack(rows)], lambda statistics, _: (-statistics.logprobs.mean(), {}), 1.0)
    sampler.sleep()
    sampler.load_weights(trainer.named_weights(), 2)
    assert tokens(sampler) != drawn
    assert_close(trainer, sampler)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_trained_adapters_reach_the_engine(both, tmp_path):
    _, sampler, _ = both
    policy = write_tiny_policy(tmp_path / "policy", seed=3, initializer_range=0.2, hidden=256)
    adapted = TorchTrainer(TRAINER, ADAMW, 1.0, with_lora(language_model(policy, TRAINER), LORA, 0))
    sampler.load_weights(adapted.named_weights(), 3)
    drawn = tokens(sampler)
    rows = [TokenSequence([5, 6], torch.randint(2, 258, (20,)).tolist()) for _ in range(4)]
    adapted.update([pack(rows)], lambda statistics, _: (-statistics.logprobs.mean(), {}), 1.0)
    sampler.load_weights(adapted.named_weights(), 4)
    assert tokens(sampler) != drawn
    assert_close(adapted, sampler)
    adapted.close()


@pytest.mark.skipif(
    tuple(map(int, VLLM.split(".")[:2])) < (0, 32), reason=f"vLLM {VLLM} has the newer runner for some models only"
)
def test_the_newer_runner_is_the_one_that_runs(both):
    """It samples all seeded requests in one kernel, the older runner in one kernel each."""
    _, sampler, _ = both
    (module,) = sampler._llm.collective_rpc(lambda worker: type(worker.model_runner).__module__)
    assert module.startswith("vllm.v1.worker.gpu.")
