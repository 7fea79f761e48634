"""One sentence for what GPUs and networks do, in which no password is shown.

The texts of failures are those of torch, NCCL and vLLM.
"""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from stages.engines.devices import pick_device
from stages.engines.trainers.shards import require_written_by
from stages.foundations.errors import UserError, gpu_failure, without_password

FULL = (
    "CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB of which 1.58 GiB is "
    "free. {others}Including non-PyTorch memory, this process has 966.00 MiB memory in use. Of the allocated memory "
    "734.07 MiB is allocated by PyTorch, and 33.93 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OLD = (
    "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
NCCL = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.18.6\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed or device error. \nLast error:\nsocketStartConnect: Connect to 192.168.19.14<52822> failed : "
    "No route to host"
)
TEXTS = {
    "too little memory": (
        torch.OutOfMemoryError(FULL.format(others="")),
        "the card's memory is full: lower trainer.micro_batch_tokens or sampler.memory_fraction (`retrace plan` says "
        "what fits) (CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB of which "
        "1.58 GiB is free)",
    ),
    "two runs on one card": (
        torch.OutOfMemoryError(FULL.format(others="Process 2493055 has 12.02 GiB memory in use. ")),
        "the card is shared, process 2493055 holds 12.02 GiB of it: end other processes on the card",
    ),
    "a sampler beside another run": (
        ValueError(
            "Free memory on device cuda:0 (12.3/79.19 GiB) on startup is less than desired GPU memory utilization "
            "(0.4, 31.68 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
        "vLLM does not get its share of the card: end other processes on the card",
    ),
    "no room for the cache": (
        ValueError(
            "To serve at least one request with the model's max seq len (8193), (0.44 GiB KV cache is needed, which is "
            "larger than the available KV cache memory (0.12 GiB). Try increasing `gpu_memory_utilization`."
        ),
        "raise sampler.memory_fraction, or lower sampler.max_model_tokens",
    ),
    "an old driver": (RuntimeError(OLD), "the NVIDIA driver supports CUDA up to 12.8"),
    "NCCL": (
        dist.DistBackendError(NCCL),
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (`ip addr`), and open it for the nodes. NCCL_DEBUG=INFO shows",
    ),
    "two ranks on one card": (
        dist.DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL "
            "version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"
        ),
        "two ranks were given one GPU: set launch.gpus_per_node",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_failure_is_one_sentence_with_a_remedy(case):
    error, told = TEXTS[case]
    assert told in gpu_failure(error) and "\n" not in gpu_failure(error)
    wrapped = RuntimeError("the engine could not be started")
    wrapped.__cause__ = error
    assert gpu_failure(wrapped) == gpu_failure(error)


def test_a_first_rank_that_nobody_finds_is_told():
    with pytest.raises(dist.DistNetworkError) as found:
        dist.TCPStore("127.0.0.1", 9, world_size=2, is_master=False, timeout=timedelta(milliseconds=50))
    assert "reaches that address (launch.command.port) (The client socket" in gpu_failure(found.value)


@pytest.mark.parametrize("text", ["oops", "out of memory", "CUDA error: device-side assert triggered"])
def test_other_errors_keep_their_traceback(text):
    assert gpu_failure(RuntimeError(text)) == ""


@pytest.mark.parametrize(
    ("said", "hidden", "refused"),
    [
        (OLD, None, True),
        (OLD, "", False),
        ("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", None, False),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_no_reason_to_compute_on_the_cpu(monkeypatch, said, hidden, refused):
    def init():
        raise RuntimeError(said)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    if refused:
        with pytest.raises(UserError, match=r"build for CUDA 13\.0: update the driver"):
            pick_device("auto")
    else:
        assert pick_device("auto").type == "cpu"
    assert pick_device("cpu").type == "cpu"


def test_a_checkpoint_of_another_trainer_is_refused_with_its_ranks(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank-{rank:05d}.safetensors").touch()
    with pytest.raises(UserError, match=r"trainer.kind deepspeed on 2 rank\(s\), but trainer.kind torch cannot"):
        require_written_by("torch", tmp_path, "trainer.safetensors")
    (tmp_path / "trainer.safetensors").touch()
    require_written_by("torch", tmp_path, "trainer.safetensors")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:S3CRET@host:5000/x", "http://me@host:5000/x"),
        ("postgresql+psycopg://me:S3/CR@ET@host/db", "postgresql+psycopg://me@host/db"),
        (
            "postgresql://host/db?user=me&password=S3CRET&sslmode=on",
            "postgresql://host/db?user=me&password=&sslmode=on",
        ),
        ("https://store/x?sv=1&sig=S3CRET", "https://store/x?sv=1&sig="),
        ("https://store/x?X-Amz-Signature=S3CRET#part", "https://store/x?X-Amz-Signature=#part"),
        (
            "call to 'https://me:S3CRET@host/api' failed: https://you:S3CRET@b",
            "call to 'https://me@host/api' failed: https://you@b",
        ),
        ("http://:S3CRET@host", "http://@host"),
        ("http://me@host:5000/x", "http://me@host:5000/x"),
        ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
        ("sqlite:////home/me/state/mlflow.db", "sqlite:////home/me/state/mlflow.db"),
        ("/some/folder@home:2", "/some/folder@home:2"),
        ("", ""),
    ],
)
def test_passwords_and_tokens_go_and_the_rest_stays(text, shown):
    assert without_password(text) == shown and without_password(shown) == shown
