"""The training command: what it refuses, what it publishes, what a whole run leaves."""

import sys
from pathlib import Path

import jax
import pytest

from experiments import train_lm
from experiments.errors import run_main
from experiments.run_folder import read_config, read_rows
from experiments.train_lm import TrainLM
from tests.experiments.small_text import write_folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text") / "secret place"
    write_folder(folder)
    return folder


def call(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train_lm", *map(str, arguments)])
        run_main(train_lm.main)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", 0), "--steps 0: expected >= 1"),
        (("--batch", -1), "--batch -1: expected >= 1"),
        (("--length", 33), "--length 33: expected an even number"),
        (("--steps", 150), "--steps 150 and --judge-every 200: expected multiples of "),
        (("--warmup", 1600), "--warmup 1600: expected 0 to 1599"),
        (("--learning-rate", "nan"), "--learning-rate nan: expected a number > 0"),
        (("--learning-rate", "inf"), "--learning-rate inf: expected a number > 0"),
        (("--clip", "nan"), "--clip nan: expected a number > 0"),
        (("--clip", 0), "--clip 0.0: expected a number > 0"),
        (("--weight-decay", "nan"), "--weight-decay nan: expected a number >= 0"),
        (("--weight-decay", -1), "--weight-decay -1.0: expected a number >= 0"),
        (("--seed", -1), "--seed -1: expected 0 to 4294967295"),
        (("--preset", "llama"), "--preset llama: unknown preset 'llama'; expected one of tiny, "),
        (("--preset", "bamba-9b"), "--preset bamba-9b: its vocabulary has 128,256 tokens; "),
        (("--data", "/nowhere"), "--data /nowhere: is no folder"),
        (("--batch", 9999), "--length 256 --batch 9999 --accumulate 1: more than the "),
    ],
)
def test_a_wrong_command_line_gets_one_line(arguments, message, text, tmp_path, capsys):
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as caught:
        call("--data", text, "--out", out, *arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not out.exists()


def test_the_command_that_is_published_names_no_place():
    options = TrainLM(
        out=Path("/home/me/run"),
        compilation_cache=Path("/home/me/cache"),
        profile=Path("/home/me/profile"),
        data=Path("/home/me/my text"),
        learning_rate=1e-3,
        quick=True,
        seed=3,
    )
    words = "--seed 3 --quick --data DIR --learning-rate 0.001"
    assert options.command() == f"python -m experiments.train_lm {words}"
    assert TrainLM().command() == "python -m experiments.train_lm"


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # as outside of tests; bf16 attention of jax needs it
def test_a_quick_run_is_whole_and_tells_no_place(text, tmp_path, capsys):
    out = tmp_path / "run"
    call("--quick", "--data", text, "--out", out, f"--compilation-cache={tmp_path / 'cache'}")
    assert "this model, bf16 weights" in capsys.readouterr().out
    names = {path.relative_to(out).as_posix() for path in out.rglob("*")}
    assert names >= {"loss.png", "weights/README.md", "weights/model.safetensors"}
    *steps, judged = read_rows(out)
    assert len(steps) == 6
    assert [row["step"] for row in steps if "held_out_bits_per_byte" in row] == [3, 6]
    card = (out / "weights" / "README.md").read_text()
    assert "    python -m experiments.train_lm --quick --data DIR\n" in card
    for name in ("model", "five_gram", "xz"):
        assert f" {judged[f'{name}_bits_per_byte']:.3f} |" in card
    assert judged["sample"].startswith("def read_lines(path")
    written = [path.read_text() for path in (out / "config.json", out / "metrics.jsonl")]
    for content in (card, *written):
        assert str(tmp_path) not in content
        assert "secret place" not in content
    assert {"grain", "optax"} <= set(read_config(out)["environment"])

    before = (out / "metrics.jsonl").read_bytes()
    call("--quick", "--data", text, "--out", out)
    assert (out / "metrics.jsonl").read_bytes() == before
