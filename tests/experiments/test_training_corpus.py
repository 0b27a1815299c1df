"""Which text a model is trained on, which it is judged by, and in what order it is read."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from experiments.errors import UserError
from experiments.training.corpus import (
    SEPARATOR,
    SKIPPED_FOLDERS,
    describe_corpus,
    is_held_out,
    read_corpus,
    sequences,
)
from tests.experiments.small_text import FILES, write_folder

LENGTH = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "here"
    return path, write_folder(path)


def test_each_file_is_on_one_side_whole(folder):
    path, content = folder
    corpus = read_corpus(path)
    assert sorted([*corpus.train_files, *corpus.held_out_files]) == sorted(content)
    assert corpus.held_out_files == tuple(name for name in sorted(content) if is_held_out(name))
    assert 0 < len(corpus.held_out_files) < FILES / 5
    for files, text in (
        (corpus.train_files, corpus.train),
        (corpus.held_out_files, corpus.held_out),
    ):
        assert text.tobytes() == b"".join(content[name] + SEPARATOR for name in files)


def test_the_split_hangs_on_a_files_own_path_alone(folder, tmp_path):
    path, content = folder
    before = read_corpus(path)
    moved = tmp_path / "elsewhere"
    write_folder(moved)
    assert describe_corpus(read_corpus(moved)) == describe_corpus(before)

    (moved / "part00.py").unlink()
    for number in range(20):
        (moved / "more").mkdir(exist_ok=True)
        (moved / "more" / f"a{number}.txt").write_text("more text\n")
    after = read_corpus(moved)
    for side in ("train_files", "held_out_files"):
        kept = {name for name in getattr(before, side) if name != "part00.py"}
        assert {name for name in getattr(after, side) if name in content} == kept
    assert describe_corpus(after) != describe_corpus(before)


def test_what_is_no_text_of_ones_own_is_left_out(folder, tmp_path):
    path, _ = folder
    write_folder(tmp_path)
    for name in SKIPPED_FOLDERS:
        (tmp_path / "deep" / name / "deeper").mkdir(parents=True)
        (tmp_path / "deep" / name / "deeper" / "x.py").write_text("left out\n")
    (tmp_path / "picture.png").write_bytes(b"left out")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "absent.py")
    assert describe_corpus(read_corpus(tmp_path)) == describe_corpus(read_corpus(path))
    (tmp_path / "test.py").write_text("a file, not a folder\n")
    assert "test.py" in read_corpus(tmp_path).train_files


def test_by_default_the_text_is_the_standard_library(monkeypatch, tmp_path):
    write_folder(tmp_path)
    (tmp_path / "notes.txt").write_text("a licence, say\n")
    real = sysconfig.get_path
    monkeypatch.setattr(
        sysconfig, "get_path", lambda name: str(tmp_path) if name == "stdlib" else real(name)
    )
    corpus = read_corpus()
    assert "notes.txt" not in {*corpus.train_files, *corpus.held_out_files}
    assert len(corpus.train_files) + len(corpus.held_out_files) == FILES


def make_small(path):
    write_folder(path)
    for name in filter(is_held_out, [p.name for p in path.iterdir()]):
        (path / name).write_bytes(b"")


def make_unreadable(path):
    write_folder(path)
    (path / "part00.py").unlink()
    (path / "part00.py").symlink_to("/proc/self/mem")  # a file whose start cannot be read


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, r"--data .*: is no folder"),
        (lambda path: path.write_text("text"), r"--data .*: is no folder"),
        (Path.mkdir, r"--data .*: 0 bytes to train on, in 0 of 0 files; expected at least 1000"),
        (
            make_small,
            rf"--data .*: \d bytes to hold out, in \d of {FILES} files; expected at least",
        ),
        (make_unreadable, r"--data .*: part00\.py: "),
    ],
)
def test_a_folder_that_cannot_be_split_is_refused(make, message, tmp_path):
    path = tmp_path / "given"
    make(path)
    with pytest.raises(UserError, match=message) as caught:
        read_corpus(path)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def text():
    """Random bytes: eight in a row are found at one place only."""
    return np.random.default_rng(0).integers(0, 256, 20 * LENGTH + 7).astype(np.uint8)


def starts(text, batch):
    """Where the sequences of a step begin; fails on one that is not in the text."""
    assert batch.dtype == np.uint8
    assert batch.shape[-1] == LENGTH + 1
    return [text.tobytes().index(row.tobytes()) for row in batch.reshape(-1, LENGTH + 1)]


def test_a_step_reads_the_same_whatever_was_read_before(text):
    one, two = (sequences(text, LENGTH, 3, 2, seed=5) for _ in range(2))
    assert one[0].shape == (2, 3, LENGTH + 1)
    steps = [0, 1, 2, 7, 40, 1000]
    forwards = {step: one[step] for step in steps}
    for step in reversed(steps):
        np.testing.assert_array_equal(two[step], forwards[step])
    assert not np.array_equal(sequences(text, LENGTH, 3, 2, seed=6)[0], forwards[0])
    found = starts(text, np.concatenate([forwards[step] for step in steps]))
    assert len(set(found)) > len(found) / 2


def test_every_pass_takes_all_windows_in_a_new_order(text):
    batches = sequences(text, LENGTH, 1, 1, seed=0)
    windows = (len(text) - 1) // LENGTH - 1
    passes = []
    for number in range(6):
        steps = range(number * windows, (number + 1) * windows)
        passes.append([starts(text, batches[step])[0] for step in steps])
    for found in passes:
        assert sorted(start // LENGTH for start in found) == list(range(windows))
    orders = {tuple(start // LENGTH for start in found) for found in passes}
    assert len(orders) == len(passes)
    moved = {start % LENGTH for found in passes for start in found}
    assert len(moved) > LENGTH / 2  # a window starts anywhere within its length
    assert len({start for found in passes for start in found}) > 4 * windows


def test_text_for_less_than_a_step_is_refused(text):
    sequences(text, LENGTH, 19, 1, seed=0)[0]
    with pytest.raises(UserError, match=r"--length 32 --batch 5 --accumulate 4: more than the 647"):
        sequences(text, LENGTH, 5, 4, seed=0)
