"""Supervised fine-tuning: it learns, drops rows that do not fit, and a killed run ends with the same weights."""

import csv
import importlib.util
import json
import os
import random
import signal

import pytest
import torch
from safetensors.torch import load_file

from stages.__main__ import main
from stages.engines.trainers.checkpoints import Checkpoints
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5
from stages.foundations.tables import DEMONSTRATION, DROPPED, read_table, write_table
from tests.fakes.engine_params import LORA, MUON
from tests.fakes.forks import changes_of, killed_at
from tests.fakes.taught_policy import sft_flags, write_params

NEVER = -1
"""No change of a file has this number: the fork's work kills it instead."""


def test_the_validation_loss_falls_to_what_random_digits_allow(taught):
    rows = list(csv.DictReader((taught / "sft.csv").open()))
    validation = [float(row["loss/validation"]) for row in rows if row["loss/validation"]]
    assert [int(row["step"]) for row in rows] == list(range(1, 61))
    assert validation[-1] < validation[0]
    # Nine tokens, of which one, the digit, has log 3 nats: 0.11 at best; a uniform policy has log 258 = 5.55.
    assert 0.1 < validation[-1] < 0.5
    metrics = json.loads((taught / "sft.json").read_text())
    assert metrics["loss/validation_last"] == pytest.approx(validation[-1])
    assert metrics["rows/in"] == metrics["rows/kept"] == 18 + 5


def test_too_long_demonstrations_are_dropped_and_counted(taught, tmp_path):
    frame = read_table(taught / "train.parquet", DEMONSTRATION)
    frame.loc[0, "response"] = "x" * 100
    write_table(frame, tmp_path / "train.parquet", DEMONSTRATION)
    flags = sft_flags(taught, write_params(tmp_path / "params.yaml", {"sft.steps": 6}), tmp_path)
    flags[flags.index("--train") + 1] = str(tmp_path / "train.parquet")
    main(flags)
    assert json.loads((tmp_path / "sft.json").read_text())["dropped/too_long"] == 1
    assert read_table(tmp_path / "dropped.parquet", DROPPED)["reason"].tolist() == ["too_long"]


def test_nothing_that_fits_is_an_error_with_the_remedy(taught, tmp_path):
    params = write_params(tmp_path / "params.yaml", {"sft.max_sequence_tokens": 8})
    with pytest.raises(UserError, match=r"sft\.max_sequence_tokens 8: raise it"):
        main(sft_flags(taught, params, tmp_path))


def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(taught, tmp_path, capfd):
    """The kill comes at a seeded moment in the middle, with few steps; it counts file changes, not time."""
    params = write_params(tmp_path / "params.yaml", {"sft.steps": 9, "sft.checkpoint_every_steps": 2})
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    most = changes_of(lambda: main(sft_flags(taught, params, tmp_path / "whole")), tmp_path)
    moment = random.Random("killed sft").randrange(most // 3, 2 * most // 3)
    assert killed_at(lambda: main(sft_flags(taught, params, tmp_path / "killed")), tmp_path, moment)
    assert not (tmp_path / "killed" / "sft").exists()
    main(sft_flags(taught, params, tmp_path / "killed"))
    assert "sft: resuming from step" in capfd.readouterr().err
    for name in ("sft", "sft.csv", "sft.json"):
        assert dvc_md5(tmp_path / "killed" / name) == dvc_md5(tmp_path / "whole" / name)
    assert not list((tmp_path / "state").glob("scratch/*/*"))


def test_a_run_that_is_killed_at_the_end_of_a_pass_begins_the_next_one(taught, tmp_path, capfd):
    """18 demonstrations, 6 per batch: each checkpoint ends a pass, and the run dies just after two of the three."""
    three = {f"sft.{name}": 3 for name in ("validate_every_steps", "checkpoint_every_steps")}
    params = write_params(tmp_path / "params.yaml", {"sft.steps": 9, "sft.batch_demonstrations": 6, **three})
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    main(sft_flags(taught, params, tmp_path / "whole"))

    def killed_after(step):
        keep_last = Checkpoints.keep_last

        def keep_and_die(self, *arguments):
            keep_last(self, *arguments)
            if self.newest() == self.folder(step):
                os.kill(os.getpid(), signal.SIGKILL)

        Checkpoints.keep_last = keep_and_die
        main(sft_flags(taught, params, tmp_path / "killed"))

    for step in (3, 6):
        assert killed_at(lambda step=step: killed_after(step), tmp_path, NEVER)
    capfd.readouterr()
    main(sft_flags(taught, params, tmp_path / "killed"))
    assert "sft: resuming from step 6" in capfd.readouterr().err
    rows = list(csv.DictReader((tmp_path / "killed" / "sft.csv").open()))
    assert [int(row["step"]) for row in rows] == list(range(1, 10))
    for name in ("sft", "sft.csv", "sft.json"):
        assert dvc_md5(tmp_path / "killed" / name) == dvc_md5(tmp_path / "whole" / name)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_lora_learns_beside_weights_that_stay(taught, tmp_path):
    changes = {"sft.adapter": {**LORA.model_dump(), "rank": 16, "alpha": 32}, "sft.steps": 30}
    main(sft_flags(taught, write_params(tmp_path / "params.yaml", changes), tmp_path))
    rows = list(csv.DictReader((tmp_path / "sft.csv").open()))
    losses = [float(row["loss/train"]) for row in rows]
    assert losses[-1] < 0.5 * losses[0]
    before, after = (load_file(folder / "model.safetensors") for folder in (taught / "base", tmp_path / "sft"))
    assert before.keys() == after.keys()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if "_proj" in name
    }


def test_lora_with_muon_is_refused_before_anything_is_read(taught, tmp_path):
    changes = {"sft.adapter": LORA.model_dump(), "sft.optimizer": MUON.model_dump()}
    with pytest.raises(UserError, match=r"set optimizer\.kind adamw, or leave adapter out"):
        main(sft_flags(taught, write_params(tmp_path / "params.yaml", changes), tmp_path))
