"""Plans compared with hand-worked cases, and with published parameter counts and step times."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pydantic import TypeAdapter
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.graph.recipes import read_recipe
from pipelines.planning.command import PUBLISHED_RUNS, planned_step
from pipelines.planning.memory import training_memory
from pipelines.planning.plan import PlanRequest, make_plan
from pipelines.planning.sizes import GPUS, PUBLISHED, Shape, named_shape, read_config
from pipelines.planning.timing import BANDWIDTH_SHARE, MFU, GpuSpeed, layer_flops, sampling_flops, training_flops
from pipelines.planning.work import ResponseLengths, Sampling, SideBySide, Training, over_turns
from stages.base.run import make_base_policy
from stages.base.stage import BaseParams
from stages.engines.policies.policy_folders import count_policy
from stages.engines.trainers.params import DeepspeedTrainerParams, LoraParams
from stages.foundations.errors import UserError

PROJECT = Path(__file__).resolve().parents[2]
TINY = Shape("tiny", hidden=4, layers=2, heads=2, kv_heads=1, head_size=2, feed_forward=8, vocabulary=10, is_tied=True)


def test_parameters_by_hand():
    # A layer: q 4x4, k and v 4x2 each, out 4x4 = 48; three matrices 4x8 = 96; two norms of 4 = 8. Two of them, an
    # embedding of 40 that is also the head, a last norm of 4: 2 * 152 + 44 = 348.
    assert TINY.parameters == 348
    assert TINY.multiplied == 2 * 144 + 40
    assert TINY.kv_bytes_per_token(2) == 2 * 2 * 1 * 2 * 2


BILLIONS = {"Qwen2.5-32B": 32.76, "Qwen2.5-7B": 7.615, "Qwen2.5-0.5B": 0.494, "SmolLM2-135M": 0.1345}
BILLIONS |= {"Qwen3-32B": 32.76, "Qwen3-8B": 8.19, "Llama-3.1-8B": 8.03}


def test_parameters_are_those_that_were_published():
    planned = {name: PUBLISHED[name.lower()].parameters / 1e9 for name in BILLIONS}
    assert planned == pytest.approx(BILLIONS, rel=1e-3)
    assert named_shape("Qwen2.5-Math-7B-Instruct").max_positions == 4096
    with pytest.raises(UserError, match="--config"):
        named_shape("unheard-of")


def test_parameters_are_those_of_the_model_that_transformers_makes(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    config.save_pretrained(tmp_path)
    made = sum(weight.numel() for weight in Qwen2ForCausalLM(config).parameters())
    assert read_config(tmp_path / "config.json").parameters == made


def test_training_flops_by_hand():
    # Both layers forward: 2 * 2 * 144 = 576, attention 2 layers * 2 heads * 2 wide * 2 * context 6 = 96.
    # Forward and backward of 10 tokens: 3 * 672 * 10; the head 2 * 40, four times, for 5 response tokens.
    work = Training(10, 5, 0, 6, 6, 1, "adamw")
    assert training_flops(work, TINY, is_checkpointed=False) == 3 * 672 * 10 + 5 * 80 * 4
    assert training_flops(work, TINY, is_checkpointed=True) == 4 * 672 * 10 + 5 * 80 * 4
    # Seven tokens forward only; half of them use the head.
    forward = training_flops(Training(10, 5, 7, 6, 6, 1, "adamw"), TINY, False)
    assert forward - training_flops(work, TINY, False) == 7 * (672 + 40)


@pytest.mark.parametrize("mean", [1.0, 30.0, 95.0])
def test_lengths_keep_their_mean_and_their_limit(mean):
    lengths = ResponseLengths(mean, 100)
    steps = [lengths.open_share(tokens / 100) / 100 for tokens in range(10000)]
    assert sum(steps) == pytest.approx(mean, rel=0.02)
    assert lengths.open_share(100) == 0.0
    assert lengths.mean_square == pytest.approx(
        2 * sum(place / 100 * share for place, share in enumerate(steps)), rel=0.02
    )


def deepspeed(stage, offload=False, checkpointing=True):
    return DeepspeedTrainerParams(
        kind="deepspeed",
        zero_stage=stage,
        dtype="mixed",
        offload_optimizer=offload,
        threads=1,
        micro_batch_tokens=1024,
        gradient_checkpointing=checkpointing,
    )


def test_training_state_is_that_of_the_zero_paper():
    # arXiv 1910.02054, figure 1: 7.5 billion weights on 64 GPUs, 16 bytes per weight. ZeRO 1 divides the 12 bytes of
    # the optimizer, ZeRO 2 the gradients, ZeRO 3 the weights. Here gradients are float32: 2 bytes more.
    shape = named_shape("Qwen2.5-7B")
    count = shape.parameters
    held = {stage: training_memory(shape, deepspeed(stage), "adamw", 64, 1024, False) for stage in (1, 2, 3)}
    assert held[1].optimizer == held[3].optimizer == pytest.approx(12 * count / 64)
    assert (held[1].gradients, held[2].gradients) == (4 * count, pytest.approx(4 * count / 64))
    assert (held[2].weights, held[3].weights) == (2 * count, pytest.approx(2 * count / 64))
    assert training_memory(shape, deepspeed(1, offload=True), "adamw", 64, 1024, False).optimizer == 0
    more = training_memory(shape, deepspeed(3, checkpointing=False), "adamw", 64, 1024, False)
    assert more.activations > 4 * held[3].activations


def test_a_critic_holds_the_state_of_a_body_and_learns_it_too():
    shape, small = named_shape("Qwen2.5-7B"), named_shape("Qwen2.5-1.5B")
    for one in (shape, small):
        alone, both = (
            training_memory(one, deepspeed(2), "adamw", 8, 1024, False, None, critic) for critic in (None, "adamw")
        )
        body = one.parameters - (0 if one.is_tied else one.vocabulary * one.hidden)
        assert both.weights - alone.weights == 2 * body
        assert both.gradients - alone.gradients == pytest.approx(4 * body / 8)
        assert both.optimizer - alone.optimizer == pytest.approx(12 * body / 8)
        assert both.activations == alone.activations
    assert small.is_tied and not shape.is_tied
    work = Training(1000, 0, 0, 100, 10, 1, "adamw")
    alone, both = (training_flops(replace(work, critic=critic), shape, False) for critic in (None, "adamw"))
    assert both / alone == pytest.approx(7 / 3), "forward and backward once more, and forward for the values"


def test_lora_holds_gradients_and_moments_of_its_own_weights_alone():
    shape = named_shape("Qwen2.5-7B")
    lora = LoraParams(kind="lora", rank=16, alpha=32, targets="all_linear", rslora=False)
    # Sides of queries and output, keys and values, and three of the feed-forward, of 28 layers.
    learned = 16 * 28 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
    held, whole = (training_memory(shape, deepspeed(1), "adamw", 1, 1024, False, adapter) for adapter in (lora, None))
    assert (held.gradients, held.optimizer) == (4 * learned, 12 * learned)
    assert held.weights == 2 * (shape.parameters + learned) and held.activations == whole.activations
    narrow = lora.model_copy(update={"targets": ["q_proj"], "rank": 8})
    held = training_memory(shape, deepspeed(1), "adamw", 1, 1024, False, narrow)
    assert held.gradients == 4 * 8 * 28 * (3584 + 3584)


def test_decoding_is_bound_by_memory_and_then_by_products():
    shape, gpu = named_shape("Qwen2.5-7B"), GPUS["H100"]
    speed = GpuSpeed(gpu, 1, 1, 1, "bfloat16", "bfloat16", False, 1024, 0.4, 0.6)
    # One sequence: every weight except the embedding is read once, 14.1 GB at 0.6 * 3.35 TB/s.
    assert speed.step_seconds(shape, 1, 1) == pytest.approx(shape.multiplied * 2 / (0.6 * 3.35e12), rel=1e-4)
    many = speed.step_seconds(shape, 4096, 1)
    assert many == pytest.approx(4096 * 2 * shape.multiplied / (0.4 * 989e12), rel=1e-3)
    # The cache holds one sequence in twenty: the others wait, and each reading of the weights serves few tokens.
    work = Sampling(1, 64, 16, 100, ResponseLengths(300, 1000))
    assert speed.sampling_seconds(shape, work, 20_000) > 1.5 * speed.sampling_seconds(shape, work, 1e9)
    two = GpuSpeed(gpu, 1, 2, 1, "bfloat16", "bfloat16", False, 1024, 0.4, 0.6)
    assert two.sampling_seconds(shape, work, 1e9) < speed.sampling_seconds(shape, work, 1e9)


@pytest.mark.parametrize("run", PUBLISHED_RUNS, ids=lambda run: run.name)
def test_published_steps_are_met_within_a_third(run):
    assert abs(sum(planned_step(run, MFU, BANDWIDTH_SHARE)) / run.step_seconds - 1) < 1 / 3


def test_on_a_cpu_times_are_those_of_earlier_runs(tmp_path):
    measured = json.loads((PROJECT / "pipelines/recipes/measured.json").read_text())["digits"]["stages"]
    plan = make_plan(PROJECT, "digits", PlanRequest())
    # A run on this machine takes the place of a measured time, so only presence is compared.
    assert {stage.name for stage in plan.stages if stage.seconds is not None} >= {*measured} - {"code"}
    assert plan.hours == pytest.approx(sum(stage.seconds or 0.0 for stage in plan.stages) / 3600) and plan.hours > 0
    assert next(stage for stage in plan.stages if stage.name == "sft").training.total > 0
    path = tmp_path / "of_nobody.yaml"
    path.write_text(yaml.safe_dump(read_recipe(PROJECT, "digits")))
    unknown = make_plan(PROJECT, str(path), PlanRequest())
    assert all(stage.seconds is None for stage in unknown.stages)
    assert any("no run of this recipe has measured the time on a CPU" in line for line in unknown.not_counted)
    shown = CliRunner().invoke(app, ["plan", str(path)]).stdout
    assert re.search(r"^sft .* not known$", shown, re.M) and re.search(r"^in all, at least +not known$", shown, re.M)


def test_a_folder_without_metrics_or_with_others_is_refused(tmp_path):
    no_run = "has no metrics of a stage that trained or sampled: name data/metrics of a finished run"
    for content, told in (("{}", no_run), ('{"loss": 1}', no_run), ("[1]", r"sft\.json is no metric file")):
        (tmp_path / "sft.json").write_text(content)
        with pytest.raises(UserError, match=told):
            make_plan(PROJECT, "laptop", PlanRequest(measured=str(tmp_path)))


def test_lengths_of_a_finished_run_take_the_place_of_assumptions(tmp_path):
    (tmp_path / "rl_round").mkdir()
    round_1 = {"rollouts/drawn": 100, "groups/trained": 10, "groups/drawn": 40, "tokens/sampled": 5000}
    (tmp_path / "rl_round" / "rl_1.json").write_text(json.dumps(round_1))
    (tmp_path / "sft.json").write_text(json.dumps({"tokens/trained": 700 * 32 * 40}))
    plan = make_plan(PROJECT, "laptop", PlanRequest(measured=str(tmp_path)))
    stages = {stage.name: stage for stage in plan.stages}
    assert stages["sft"].trained_tokens == 700 * 32 * 40
    # 15 steps of 32 groups of 16, four sampled for each one trained on, 50 tokens each.
    assert stages["rl_round@rl_1"].drawn_tokens == pytest.approx(15 * 32 * 16 * 4 * 50)
    assert stages["rl_round@rl_2"].drawn_tokens == pytest.approx(15 * 32 * 16 * 2 * 24)


def large_recipe(tmp_path, **changes):
    """Writes DAPO's settings (arXiv 2503.14476) on Qwen2.5-32B as a parameter file."""
    params = yaml.safe_load((PROJECT / "pipelines" / "recipes" / "gsm8k-smollm2.yaml").read_text())
    params["base"] = {"kind": "hub", "repository": "Qwen/Qwen2.5-32B", "revision": "0" * 40}
    params["launch"] |= {"gpus_per_node": 8, "command": {"kind": "torchrun"}}
    params["trainer"] = deepspeed(3).model_dump() | {"micro_batch_tokens": 22528}
    params["sampler"] |= {"dtype": "bfloat16", "max_model_tokens": 22528, "max_sequences": 256, "tensor_parallel": 4}
    params["rl"] |= {"problems_per_step": 512, "group_size": 16, "max_response_tokens": 20480, "minibatches": 16}
    params["respond"] |= {"max_response_tokens": 20480}
    for name, value in changes.items():
        section, key = name.split("__")
        params[section][key] = value
    path = tmp_path / "large.yaml"
    path.write_text(yaml.safe_dump(params))
    return str(path)


def test_what_does_not_fit_is_told_with_a_remedy(tmp_path):
    def problems(**changes):
        made = make_plan(PROJECT, large_recipe(tmp_path, **changes), PlanRequest("H100", 128, replicas=32))
        return " ".join(made.problems)

    assert problems(sampler__memory_fraction=0.3) == ""
    told = problems(trainer__zero_stage=1)
    assert "training needs" in told and "raise trainer.zero_stage (now 1)" in told
    assert "raise sampler.tensor_parallel (now 1)" in problems(sampler__tensor_parallel=1)
    told = problems(sampler__memory_fraction=0.9)
    assert "share rank 0's GPU" in told and "lower sampler.memory_fraction to 0." in told
    assert "more than sampler.max_model_tokens 8192" in problems(sampler__max_model_tokens=8192)
    with pytest.raises(UserError, match="lower --replicas"):
        make_plan(PROJECT, large_recipe(tmp_path), PlanRequest("H100", 8, replicas=32))


def test_more_gpus_take_less_time_and_the_price_counts_all_of_them(tmp_path):
    recipe = large_recipe(tmp_path)
    few = make_plan(PROJECT, recipe, PlanRequest("H100", 64, replicas=16, price=3.0))
    many = make_plan(PROJECT, recipe, PlanRequest("H100", 128, replicas=32, price=3.0))
    assert many.hours < few.hours
    assert many.cost == pytest.approx(many.hours * 128 * 3.0)


def asynchronous_recipe(tmp_path, **loop):
    """Writes the large recipe with 28 replicas of 4 GPUs that sample while 16 ranks train."""
    path = Path(
        large_recipe(tmp_path, launch__command={"kind": "python"}, sampler__replicas={"kind": "ray", "count": 28})
    )
    params = yaml.safe_load(path.read_text())
    correction = {"kind": "importance_weights", "level": "token", "cap": 2.0}
    loop = read_recipe(PROJECT, "laptop-asynchronous")["rl"]["loop"] | {"window": 2, "trainer_ranks": 16, **loop}
    params["rl"] |= {"proximal": "recompute", "rollout_correction": correction, "loop": loop}
    path.write_text(yaml.safe_dump(params))
    return str(path)


def test_prompts_that_take_each_others_place_empty_the_batch_once():
    shape, most = named_shape("Qwen2.5-7B"), ResponseLengths(1000.0, 8000)
    speed = GpuSpeed(GPUS["H100"], 1, 2, 1, "bfloat16", "bfloat16", False, 64)
    calls = Sampling(100, 32, 4, 100.0, most)
    endless = Sampling(1, 3200, 4, 100.0, most, in_flight=32)
    full = (12800 / 2 - 64) * 1000 / 64 * speed.step_seconds(shape, 64, endless.context)
    found = speed.sampling_seconds(shape, endless, 1e9)
    assert full < found < full * 1.2 and found < 0.6 * speed.sampling_seconds(shape, calls, 1e9)
    both = SideBySide(replicas=2, trainer_ranks=1, steps=10)
    assert both.seconds(100.0, 40.0) == both.seconds(40.0, 100.0) == 104.0, "the longer, and a step of the other"


def test_later_turns_read_the_earlier_ones_again_unless_the_sampler_keeps_them(tmp_path):
    environment = SimpleNamespace(max_turns=5, max_observation_tokens=20)
    part = Sampling(10, 8, 4, 100.0, ResponseLengths(60.0, 200))
    assert over_turns(part, None, keeps_prefixes=False) == (part, ())
    # 3 turns: the second and the third read the prompt of 100 and half of 60 + 2 * 20 tokens, in each of 4 samples.
    again, (sentence,) = over_turns(part, environment, keeps_prefixes=False)
    assert (again.observed, again.read_between, again.read_for_prompt) == (40, 2 * 150, 100 + 4 * 300)
    assert "3 turns a response, the middle of 1 to 5" in sentence and "again for each turn" in sentence
    more = sampling_flops(again, TINY) - sampling_flops(part, TINY)
    assert more == pytest.approx(10 * 8 * 4 * 300 * layer_flops(TINY, 100.0))
    kept, (sentence,) = over_turns(part, environment, keeps_prefixes=True)
    assert (kept.observed, kept.read_between) == (40, 40) and "keeps earlier turns" in sentence
    wide = SimpleNamespace(max_turns=5, max_observation_tokens=500)
    assert over_turns(part, wide, keeps_prefixes=True)[0].observed == 140, "the limit of 200 counts observations"

    recipe = read_recipe(PROJECT, "laptop")
    plain = make_plan(PROJECT, "laptop", PlanRequest("H100"))
    limits = {"max_turns": 5, "max_observation_tokens": 8}
    workers = {"processes": 1, "memory_mib": 256, "timeout_seconds": 1}
    tools = {"tools": {}, "calls": {"kind": "marked", "call": "!", "answer": "="}}
    frame = {"kind": "text", "before": ":", "after": ";"}
    recipe["prompt"]["environment"] = {"kind": "tools", **tools, **limits, "frame": frame, "workers": workers}
    path = tmp_path / "turns.yaml"
    path.write_text(yaml.safe_dump(recipe))
    turns = make_plan(PROJECT, str(path), PlanRequest("H100"))
    for one, other in zip(plain.stages, turns.stages, strict=True):
        draws = one.name.partition("@")[0] in ("rl_round", "respond")
        assert (other.sampling_seconds > one.sampling_seconds) is draws, one.name
        assert (other.training_seconds > one.training_seconds) is one.name.startswith("rl_round"), one.name
    assert sum("prompt.environment: 3 turns a response" in line for line in turns.assumptions) == 1


def test_the_asynchronous_loop_is_planned_side_by_side_on_gpus_of_its_own(tmp_path):
    made = make_plan(PROJECT, asynchronous_recipe(tmp_path), PlanRequest("H100", 128, replicas=2))
    stages = {stage.name: stage for stage in made.stages}
    stage = stages["rl_round@rl_1"]
    longer, shorter = sorted((stage.training_seconds, stage.sampling_seconds), reverse=True)
    steps = yaml.safe_load(Path(tmp_path / "large.yaml").read_text())["rl_rounds"]["rl_1"]["steps"]
    assert stage.seconds == pytest.approx(longer + shorter / steps) and shorter > 0
    assert stages["sft"].seconds == stages["sft"].training_seconds
    told = " ".join(made.assumptions)
    assert "longer of sampling (28 replica(s)) and training (16 rank(s)), in parallel" in told
    # Of the round there is one account: what the other stages use is said of them alone.
    assert "in stages other than that round, training: 1 GPU(s); sampling: 2 replica(s) over 4 GPU(s)" in told
    assert told.count("training: ") == 1 and "in all stages, training at 0.40 of the peak" in told
    assert "repack is assumed to keep" in told and not any("share rank 0" in line for line in made.problems)
    few = make_plan(PROJECT, asynchronous_recipe(tmp_path), PlanRequest("H100", 64))
    assert any("need 128 GPUs, but --gpus is 64: raise it" in line for line in few.problems)
    plain = make_plan(PROJECT, asynchronous_recipe(tmp_path, repack={"kind": "none"}), PlanRequest("H100", 128))
    alone = next(stage for stage in plain.stages if stage.name == "rl_round@rl_1")
    assert alone.sampling_seconds > stage.sampling_seconds
    assert "waits for the longest response of its share" in " ".join(plain.assumptions)


def test_the_trainer_of_the_asynchronous_loop_stands_still_while_it_evaluates(tmp_path):
    recipe = Path(asynchronous_recipe(tmp_path))
    plain = make_plan(PROJECT, str(recipe), PlanRequest("H100", 128))
    params = yaml.safe_load(recipe.read_text())
    held_out = {"every_steps": 1, "problems": 64, "samples": 8, "temperature": 1.0, "keep": "best", "patience": None}
    params["rl"]["evaluation"] = held_out
    params["curate"]["validation_rows"] = 64
    recipe.write_text(yaml.safe_dump(params))
    made = make_plan(PROJECT, str(recipe), PlanRequest("H100", 128))
    before, after = (next(one for one in plan.stages if one.name == "rl_round@rl_1") for plan in (plain, made))
    evaluated = after.sampling_seconds - before.sampling_seconds
    longer, shorter = sorted((before.training_seconds + evaluated, before.sampling_seconds), reverse=True)
    assert evaluated > 0 and after.seconds == pytest.approx(longer + shorter / params["rl_rounds"]["rl_1"]["steps"])
    assert after.drawn_tokens > before.drawn_tokens and after.training_seconds == before.training_seconds
    assert any("share rank 0's GPU" in line for line in made.problems), "its sampler is there"


def test_the_command_prints_a_table_or_json_and_refuses_what_it_does_not_know(tmp_path):
    run = CliRunner().invoke
    shown = run(app, ["plan", "gsm8k-smollm2", "--gpu", "H100", "--price", "2.5"])
    assert shown.exit_code == 0 and "rl_round@rl_2" in shown.stdout and "x 2.5 =" in shown.stdout
    assert "\nin all, at least " in shown.stdout and "Not counted:\n  table stages, process starts" in shown.stdout
    as_json = json.loads(run(app, ["plan", "gsm8k-smollm2", "--gpu", "A100", "--json"]).stdout)
    assert as_json["model"]["parameters"] == 134515008
    memory = {stage["name"]: stage["memory_bytes"] for stage in as_json["stages"]}
    assert {"training_weights", "training_optimizer", "sampling_kv_cache"} <= set(memory["rl_round@rl_1"])
    assert run(app, ["plan", "nothing"]).exit_code == 2
    assert "there are A100" in run(app, ["plan", "laptop", "--gpu", "Z80"]).output
    for words in (["--gpu", "cpu", "--gpus", "8"], ["--gpus", "8"], ["--replicas", "2"], ["--price", "1"]):
        refused = run(app, ["plan", "laptop", *words])
        assert refused.exit_code == 2 and f"{words[-2]} needs the GPU's name" in refused.output, words
    assert "DAPO Qwen2.5-32B" in run(app, ["plan", "--published"]).stdout
    pictures = run(app, ["plan", "t2i-shapes", "--gpu", "H100"])
    assert pictures.exit_code == 2 and "no stage of this recipe trains or samples a language model" in pictures.output


def test_work_of_unknown_size_is_named_and_not_counted_as_nothing(tmp_path):
    params = read_recipe(PROJECT, "gsm8k-smollm2")
    params["respond"]["max_problems"] = None
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(params))
    asked = str(tmp_path / "p.yaml")
    unknown = (
        "respond@base, respond@sft, respond@rl_1, respond@rl_2: responses to an unknown number of problems (give "
        "--benchmark-problems)"
    )
    assert unknown in make_plan(PROJECT, asked, PlanRequest(gpu="H100")).not_counted
    known = make_plan(PROJECT, asked, PlanRequest(gpu="H100", benchmark_problems=8)).not_counted
    assert not [line for line in known if line.startswith("respond")]


def test_parameters_of_a_random_policy_are_those_of_the_policy_that_is_made(tmp_path):
    params = read_recipe(PROJECT, "laptop")
    make_base_policy(TypeAdapter(BaseParams).validate_python(params["base"]), 0, tmp_path)
    planned = make_plan(PROJECT, "laptop", PlanRequest(gpu="H100")).shape.parameters
    assert planned == count_policy(tmp_path)["policy/parameters"] == 690_176
