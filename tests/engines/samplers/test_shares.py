"""The ranks' shares of the prompts: they cover all prompts, and samples come back in order."""

from types import SimpleNamespace

import pytest

from stages.engines.samplers.build import DrawingShare, drawing_share, interleaved
from stages.engines.samplers.params import VllmSamplerParams
from stages.foundations.errors import UserError
from tests.fakes.engine_params import VLLM_SAMPLER

VLLM = VLLM_SAMPLER.model_copy(update={"tensor_parallel": 2})


@pytest.mark.parametrize(("ranks", "width"), [(1, 1), (3, 1), (4, 2), (8, 4)])
@pytest.mark.parametrize("prompts", [0, 1, 5, 8])
def test_the_shares_of_all_engines_are_the_prompts_in_order(ranks, width, prompts):
    whole = list(range(prompts))
    shares = [DrawingShare(SimpleNamespace(rank=rank, world_size=ranks), width) for rank in range(ranks)]
    assert all(share.of(whole) == shares[share.ranks.rank // width * width].of(whole) for share in shares)
    parts = [share.of(whole) for share in shares if share.is_engine_leader]
    assert interleaved(parts, prompts) == whole


def test_ranks_that_make_no_whole_engine_or_have_others_beside_them_are_refused():
    six, three = (SimpleNamespace(rank=0, world_size=ranks) for ranks in (6, 3))
    assert drawing_share(VLLM, six).width == 2
    with pytest.raises(UserError, match="tensor_parallel 2 does not divide the 3 ranks"):
        drawing_share(VLLM, three)
    elsewhere = VLLM.model_copy(update={"replicas": {"kind": "ray", "count": 2}})
    with pytest.raises(UserError, match=r"leave sampler\.replicas out"):
        drawing_share(VllmSamplerParams.model_validate(elsewhere.model_dump()), six)
