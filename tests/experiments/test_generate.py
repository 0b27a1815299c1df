"""Text in, text and reports out, end to end on tiny models."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import hybrid
from experiments import generate
from experiments.errors import run_main
from experiments.request_report import WORDS, report_lines
from hybrid import trained
from planner.report import Reason, RequestReport
from tests.experiments.small_tokenizers import letters

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "parity" / "goldens"
TEXT = "It was a dark and stormy night; naïve café 中文字. " * 4 + "So"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the command line; programs of equal shapes are compiled once."""
    cache = tmp_path_factory.mktemp("compilation_cache")

    def call(*arguments, stdin=b""):
        shapes = ("--tile", 32, "--block-size", 8, "--compilation-cache", cache)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["generate", *map(str, (*shapes, *arguments))])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            run_main(generate.main)

    return call


@pytest.fixture
def requests(monkeypatch):
    """What the engine was asked and gave: (runner, prompt, completion).

    Nothing is compiled while it is at it: the warm-up has done that.
    """
    found = []
    real = hybrid.Engine.generate

    def spy(engine, prompt, *args, **options):
        traces = dict(engine.runner.traces)
        completion = real(engine, prompt, *args, **options)
        if "on_tokens" in options:
            assert engine.runner.traces == traces
            found.append((engine.runner, np.array(prompt), completion))
        return completion

    monkeypatch.setattr(hybrid.Engine, "generate", spy)
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model folder with a tokenizer of its own; no token ends a text yet."""
    folder = tmp_path_factory.mktemp("models") / "bamba"
    shutil.copytree(GOLDENS / "bamba", folder)
    letters(60).save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": []}))
    return folder


def reports(error):
    """The reports on standard error: name to value, one dictionary a turn."""
    found = []
    for text in re.split(r"^-- turn .*$", error, flags=re.MULTILINE)[1:]:
        lines = re.findall(r"^  (\w[\w ]*?)  +(\S+)", text, flags=re.MULTILINE)
        found.append({name: value.rstrip(":") for name, value in lines})
    return found


def check_report(shown, report):
    for name in ("total", "matched", "restored", "replayed", "recomputed", "suffix", "snapshots"):
        assert shown[name] == f"{getattr(report, name):,}"
    assert shown["reason"] == report.reason.value


def test_turns_continue_one_conversation(run, requests, capsys):
    run("--model", "tiny", "--prompt", TEXT, "--prompt", "And then", "--max-new-tokens", 20)
    out, error = capsys.readouterr()
    (_, first, one), (_, second, two) = requests
    assert bytes(first.tolist()) == TEXT.encode()
    expected = [*first, *one.tokens, *b"And then"]
    assert second.tolist() == expected
    answers = [bytes(c.tokens.tolist()).decode(errors="replace") for c in (one, two)]
    assert out == "".join(a if a.endswith("\n") else a + "\n" for a in answers)
    shown = reports(error)
    assert len(shown) == 2
    for values, completion in zip(shown, (one, two), strict=True):
        check_report(values, completion.report)
        assert values["new tokens"] == "20"
    assert (shown[0]["restored"], shown[0]["reason"]) == ("0", "cold")
    total = len(TEXT.encode())
    assert two.report.matched == total // 8 * 8
    assert two.report.restored == total // 32 * 32
    assert error.startswith("note: preset tiny has random weights (seed 0), so the text is noise\n")
    assert max(map(len, (out + error).splitlines())) <= 80


def test_a_second_run_restores_what_the_first_saved(run, requests, capsys, tmp_path):
    seen = []
    for _ in range(2):
        arguments = ("--prompt-file", "-", "--max-new-tokens", 20, "--snapshots", tmp_path / "s")
        run("--model", "tiny", *arguments, "--temperature", 0.7, stdin=TEXT.encode())
        seen.append(capsys.readouterr())
    cold, warm = (reports(text.err)[0] for text in seen)
    assert seen[0].out == seen[1].out
    assert (cold["restored"], cold["reason"]) == ("0", "cold")
    total = len(TEXT.encode())
    assert (int(warm["restored"]), warm["reason"]) == (total // 32 * 32, "hit")
    assert "from disk" in seen[1].err
    assert "from disk" not in seen[0].err
    assert f"{tmp_path / 's'}: 1 saved, " in seen[0].err
    run("--model", "tiny", *arguments, "--seed", 1, stdin=TEXT.encode())
    again = reports(capsys.readouterr().err)[0]
    assert again["reason"] == "fingerprint_mismatch"  # other weights


def test_a_model_folder_speaks_through_its_tokenizer(run, requests, capsys, checkpoint):
    arguments = ("--model", checkpoint, "--prompt", "ABCDEFGH" * 9, "--max-new-tokens", 24)
    draws = ("--temperature", 1.0, "--seed", 3)
    run(*arguments, *draws)
    out, error = capsys.readouterr()
    (_, prompt, whole), *_ = requests
    assert prompt.tolist() == [0, *(2 + ord(c) - ord("A") for c in "ABCDEFGH" * 9)]
    tokenizer = letters(60)
    known = [tokenizer.id_to_token(int(i)) or "\ufffd" for i in whole.tokens]
    text = "".join(t for t in known if t not in ("<s>", "<eos>"))
    assert out == text + "\n"
    assert "random" not in error
    assert reports(error)[0]["total"] == "73"

    end = next(i for i in range(5, 24) if whole.tokens[i] not in whole.tokens[:i])
    config = checkpoint / "generation_config.json"
    never = min(set(range(64)) - set(whole.tokens.tolist()))
    config.write_text(json.dumps({"eos_token_id": [int(whole.tokens[end]), never]}))
    run(*arguments, *draws)
    out, error = capsys.readouterr()
    np.testing.assert_array_equal(requests[-1][2].tokens, whole.tokens[: end + 1])
    assert reports(error)[0]["new tokens"] == str(end + 1)
    assert "up to the end of the text" in error
    assert text.startswith(out.rstrip("\n"))
    run(*arguments, *draws, "--ignore-eos")
    np.testing.assert_array_equal(requests[-1][2].tokens, whole.tokens)
    assert "as many as asked" in capsys.readouterr().err


def test_a_preset_speaks_with_its_trained_weights(run, requests, capsys, monkeypatch, tmp_path):
    shapes = hybrid.RunnerConfig(capacity=512)
    params = hybrid.ModelRunner(hybrid.preset("tiny"), hybrid.Compute(), shapes, seed=8).params
    trained.save_weights(tmp_path / "tiny" / trained.WEIGHTS, params)
    monkeypatch.setattr(trained, "FOLDER", tmp_path)
    run("--model", "tiny", "--prompt", TEXT, "--max-new-tokens", 2)
    ((runner, _, _),) = requests
    for found, drawn in zip(jax.tree.leaves(runner.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(found, drawn.astype(jax.numpy.bfloat16))
    assert "random" not in capsys.readouterr().err


def test_text_is_shown_while_it_comes(run, monkeypatch):
    """What was drawn is written before more is drawn."""
    written = []
    monkeypatch.setattr(generate, "show", lambda text, out: written.append(text))
    seen = []
    real = hybrid.ModelRunner.decode

    def spy(runner, *args, after_call=None, **options):
        def watched(start, drawn):
            ended = after_call(start, drawn)
            seen.append((start + drawn.shape[1], sum(map(len, written))))
            return ended

        watch = watched if options["seed"] == 5 else after_call
        return real(runner, *args, after_call=watch, **options)

    monkeypatch.setattr(hybrid.ModelRunner, "decode", spy)
    monkeypatch.setattr(generate, "read_vocabulary", lambda *args: Hexadecimal())
    arguments = ("--model", "tiny", "--prompt", TEXT, "--seed", 5)
    run(*arguments, "--max-new-tokens", 20)
    assert seen == [(8, 16), (16, 32), (20, 40)]


class Hexadecimal:
    """Two characters a token."""

    def encode(self, text, *, first):
        return np.frombuffer(text, np.uint8).astype(np.int32)

    def stream(self, before):
        return self

    def feed(self, tokens):
        return bytes(tokens.tolist()).hex()

    def finish(self):
        return ""


def letters_over(folder):
    letters(65).save(str(folder / "tokenizer.json"))


def no_weights(folder):
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "tiny"), "expected --prompt TEXT or --prompt-file PATH"),
        (("--model", "tiny", "--prompt", ""), "--prompt: empty; expected text"),
        (("--model", "tiny", "--prompt", "a", "--prompt", ""), "--prompt, number 2: empty"),
        (("--model", "tiny", "--prompt-file", "-"), "--prompt-file -: empty"),
        (("--model", "tiny", "--prompt-file", "no.txt"), "--prompt-file no.txt: "),
        (("--model", "huge", "--prompt", "a"), "--model huge: unknown preset 'huge'; expected"),
        (("--model", "./tiny", "--prompt", "a"), "--model ./tiny: no such folder"),
        (("--model", "no/where", "--prompt", "a"), "--model no/where: no such folder"),
        (("--model", __file__, "--prompt", "a"), ": is a file; expected a folder that holds"),
        (("--model", GOLDENS, "--prompt", "a"), "goldens/config.json: no such file"),
        (("--model", GOLDENS / "lfm2", "--prompt", "a"), "the model knows 64 tokens, too few"),
        (("--model", "tiny", "--prompt", "a", "--temperature", -1), "--temperature -1.0: expected"),
        (("--model", "tiny", "--prompt", "a", "--temperature", "nan"), "--temperature nan: expec"),
        (("--model", "tiny", "--prompt", "a", "--max-new-tokens", 0), "--max-new-tokens 0: expect"),
        (("--model", "tiny", "--prompt", "a", "--interval", -1), "--interval -1: expected"),
        (("--model", "tiny", "--prompt", "a", "--seed", -1), "--seed -1: expected 0..4294967295"),
        (("--model", "tiny", "--prompt", "a", "--tile", 12), "--tile 12: expected a multiple"),
        (("--model", "tiny", "--prompt", "a", "--snapshots", __file__), "is a file; expected a fo"),
        (
            ("--model", "tiny", "--prompt", "abc", "--max-new-tokens", 9, "--capacity", 11),
            "--prompt: 3 prompt tokens and 9 new ones after 0 make 12; --capacity is 11",
        ),
        (
            ("--model", "tiny", *("--prompt", "abc") * 2, "--max-new-tokens", 9, "--capacity", 20),
            "--prompt, number 2: 3 prompt tokens and 9 new ones after 12 make 24; --capacity is 20",
        ),
    ],
)
def test_a_mistake_is_one_line(run, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(hybrid, "ModelRunner", None)  # nothing is built
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    out, error = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    (line,) = error.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (letters_over, "has ids up to 64 but the model's vocabulary has 64 tokens"),
        (no_weights, "holds neither model.safetensors nor"),
    ],
)
def test_a_folder_that_does_not_fit_is_one_line(run, capsys, tmp_path, checkpoint, change, message):
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    change(folder)
    with pytest.raises(SystemExit):
        run("--model", folder, "--prompt", "ABC", "--snapshots", tmp_path / "saved")
    assert message in capsys.readouterr().err
    assert not (tmp_path / "saved").exists()


def test_too_little_memory_is_one_line(run, capsys, monkeypatch):
    monkeypatch.setattr("hybrid.memory.available_bytes", lambda device: 2**10)
    with pytest.raises(SystemExit):
        run("--model", "tiny", "--prompt", "abc")
    assert "error: --model tiny: the run needs about" in capsys.readouterr().err


def test_every_reason_fits_a_terminal():
    assert set(WORDS) == set(Reason)
    for reason in Reason:
        report = RequestReport(
            total=1_234_567,
            matched=1_234_560,
            restored=1_234_560,
            recomputed=7,
            reason=reason,
            bytes_written=10**12,
            evicted_snapshots=123_456,
            evicted_blocks=1_234_567,
            evicted_bytes=10**12,
            skipped_blocks=1_234_567,
            time_to_first_token_s=1234.5,
        )
        for new_tokens in (1, 5000):
            lines = report_lines(
                report, new_tokens=new_tokens, decode_s=1e-3, from_disk=True, ended=False
            )
            assert max(map(len, lines)) <= 80
            assert any(f"reason       {reason.value}: " in line for line in lines)


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_a_terminal_is_not_driven_by_what_a_model_draws():
    text = "a\x1b[2J\tb\x07\r\n\x9b中"
    terminal = Terminal(io.BytesIO(), "utf-8", newline="")
    generate.show(text, terminal)
    assert terminal.buffer.getvalue().decode() == "a␛[2J\tb␇␍\n\ufffd中"
    file = io.TextIOWrapper(io.BytesIO(), "ascii", newline="")
    generate.show(text, file)
    assert file.buffer.getvalue() == b"a\x1b[2J\tb\x07\r\n??"


def command(*arguments):
    return [sys.executable, "-m", "experiments.generate", *map(str, arguments)]


@pytest.mark.slow
def test_a_second_process_restores(tmp_path):
    arguments = ("--model", "tiny", "--prompt", TEXT, "--snapshots", tmp_path / "saved")
    seen = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            command(*arguments, "--compilation-cache", tmp_path / "cache"),
            capture_output=True,
            check=True,
            cwd=ROOT,
            env=environment,
        )
        seen.append((done.stdout, reports(done.stderr.decode())[0]))
    (cold_text, cold), (warm_text, warm) = seen
    assert cold_text == warm_text
    assert (cold["reason"], warm["reason"]) == ("cold", "hit")
    assert int(warm["restored"]) == len(TEXT.encode()) // 64 * 64


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = command("--model", "tiny", "--prompt", TEXT)
    with subprocess.Popen(words, cwd=ROOT, **pipes) as process:
        process.stdout.close()
        error = process.stderr.read().decode()
    assert process.returncode == 1
    assert "ready after" in error
    assert "Error" not in error
    assert "turn" not in error
