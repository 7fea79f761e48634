"""Sections `sampler`, `trainer` and `optimizer` for small policies on a CPU. A test changes what it examines."""

from stages.engines.samplers.params import TorchSamplerParams, VllmSamplerParams
from stages.engines.trainers.params import AdamwParams, LoraParams, MuonParams, TorchTrainerParams

TORCH_SAMPLER = TorchSamplerParams(kind="torch", device="cpu", dtype="float32", threads=1, max_sequences=8)
VLLM_SAMPLER = VllmSamplerParams(
    kind="vllm",
    dtype="float32",
    max_model_tokens=64,
    max_sequences=32,
    memory_fraction=0.5,
    kv_cache_gib=0.1,
    tensor_parallel=1,
    enforce_eager=True,
)
TORCH_TRAINER = TorchTrainerParams(
    kind="torch", device="cpu", dtype="float32", threads=1, micro_batch_tokens=64, gradient_checkpointing=False
)
ADAMW = AdamwParams(kind="adamw", learning_rate=0.003, beta1=0.9, beta2=0.95, weight_decay=0.01)
MUON = MuonParams(kind="muon", learning_rate=0.02, adamw_learning_rate=0.003, beta1=0.9, beta2=0.98, weight_decay=0.01)
LORA = LoraParams(kind="lora", rank=4, alpha=8, targets="all_linear", rslora=False)
