"""The table of models: its rows, its text, its mistakes."""

import csv
import json
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.model_table import ModelTable, row, run

GOLDENS = Path(__file__).parents[1] / "parity" / "goldens"


def test_a_row_adds_up():
    found = row("lfm2-1.2b", "bfloat16")
    # Six attention layers with eight key/value heads of 64; ten convolutions that keep two inputs.
    assert found["kv_bytes_per_token"] == 6 * 2 * 8 * 64 * 2
    assert found["snapshot_bytes"] == 10 * 2 * 2048 * 2
    assert found["snapshot_worth_tokens"] == found["snapshot_bytes"] / found["kv_bytes_per_token"]


def test_fp32_doubles_what_is_not_fp32_already():
    half, full = row("recurrentgemma-2b", "bfloat16"), row("recurrentgemma-2b", "float32")
    assert full["kv_bytes_per_token"] == 2 * half["kv_bytes_per_token"]
    assert full["parameters"] == half["parameters"]
    scans = 18 * 2560 * 4
    assert full["snapshot_bytes"] - scans == 2 * (half["snapshot_bytes"] - scans)


def test_it_prints_and_writes(tmp_path, capsys):
    file = tmp_path / "models.csv"
    run(ModelTable(models=("tiny", "default"), csv=file))
    printed = capsys.readouterr().out
    assert "tiny" in printed
    assert "default" in printed
    rows = csv.DictReader(file.read_text().splitlines())
    assert [r["model"] for r in rows] == ["tiny", "default"]


def test_a_folder_is_read():
    found = row(str(GOLDENS / "lfm2"), "float32")
    # One of its two layers is attention.
    options = json.loads((GOLDENS / "lfm2" / "config.json").read_text())
    head_dim = options["hidden_size"] // options["num_attention_heads"]
    assert found["layers"] == options["num_hidden_layers"] == 2
    assert found["kv_bytes_per_token"] == 2 * options["num_key_value_heads"] * head_dim * 4


def test_a_folder_of_another_family_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match="model_type 'gpt2' is not a known family"):
        row(str(tmp_path), "bfloat16")


def test_an_unknown_model_is_one_line():
    with pytest.raises(UserError, match=r"--models nothing: unknown preset 'nothing'"):
        row("nothing", "bfloat16")
