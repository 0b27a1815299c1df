import json
import os
import signal
import subprocess
import sys
import textwrap

import hypothesis
import pytest
from hypothesis import strategies as st

from experiments.errors import UserError
from experiments.run_folder import RunFolder, cell_key, differences, read_config, read_rows

CONFIG = {"tile": 64, "modes": ["planned", "in_pass"], "budgets_mb": [float("inf"), 8.0]}
ENVIRONMENT = {"python": "3.11.0", "cpu_count": 2}
CELLS = [
    {"mode": mode, "interval": interval} for mode in ("planned", "in_pass") for interval in (0, 4)
]


def open_run(path, config=CONFIG, environment=ENVIRONMENT, experiment="sweep"):
    return RunFolder.open(path, experiment, config, environment)


def rows_of(cell, count=3):
    return [{"request": i, "recomputed": 100 * i + cell["interval"]} for i in range(count)]


def fill(path, cells=CELLS):
    with open_run(path) as run:
        for cell in run.unfinished(cells):
            run.write_cell(cell, rows_of(cell), count=3)


def test_finished_cells_are_skipped_and_rows_read_back(tmp_path):
    fill(tmp_path / "run", CELLS[:2])
    with open_run(tmp_path / "run") as run:
        assert run.unfinished(CELLS) == CELLS[2:]
        assert run.notices == []
    fill(tmp_path / "run")
    rows = read_rows(tmp_path / "run")
    assert [(row["mode"], row["interval"], row["request"]) for row in rows] == [
        (cell["mode"], cell["interval"], i) for cell in CELLS for i in range(3)
    ]
    config = read_config(tmp_path / "run")
    assert config["config"]["budgets_mb"] == [None, 8.0]
    assert config["experiment"] == "sweep"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    fill(path)
    return path, (path / "metrics.jsonl").read_bytes()


@hypothesis.settings(max_examples=30)
@hypothesis.given(cut=st.floats(0, 1))
def test_a_file_cut_at_any_byte_is_readable_and_the_rerun_completes_it(whole, cut):
    path, data = whole
    metrics = path / "metrics.jsonl"
    kept = data[: round(cut * len(data))]
    metrics.write_bytes(kept)
    whole_lines = kept.count(b"\n")
    assert len(read_rows(path)) == whole_lines // 3 * 3
    with open_run(path) as run:
        assert any("torn" in notice for notice in run.notices) == (
            not kept.endswith(b"\n") and kept != b""
        )
        assert any("unfinished" in notice for notice in run.notices) == (whole_lines % 3 != 0)
        assert len(run.unfinished(CELLS)) == len(CELLS) - whole_lines // 3
    fill(path)
    assert metrics.read_bytes() == data


def test_a_killed_process_leaves_a_folder_that_goes_on(tmp_path):
    script = textwrap.dedent(
        """
        import sys, time
        sys.path[:0] = [{root!r}, {here!r}]
        from test_run_folder import CELLS, open_run, rows_of
        def slow():
            yield from rows_of(CELLS[1])[:2]
            print("ready", flush=True)
            time.sleep(60)
        with open_run({out!r}) as run:
            run.write_cell(CELLS[0], rows_of(CELLS[0]), count=3)
            run.write_cell(CELLS[1], slow(), count=3)
        """
    ).format(root=os.getcwd(), here=os.path.dirname(__file__), out=str(tmp_path / "run"))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(UserError, match="in use by another"):
        open_run(tmp_path / "run")
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(read_rows(tmp_path / "run")) == 3
    with open_run(tmp_path / "run") as run:
        assert run.notices == ["dropped 2 lines of 1 unfinished cells; they run again"]
        assert run.unfinished(CELLS) == CELLS[1:]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": CONFIG | {"tile": 128}}, "tile: 64 there, 128 asked for"),
        ({"config": CONFIG | {"extra": 1}}, "extra: nothing there, 1 asked for"),
        (
            {"config": CONFIG | {"budgets_mb": [8.0]}},
            r"budgets_mb: \[null, 8.0\] there, \[8.0\] asked",
        ),
        ({"environment": ENVIRONMENT | {"cpu_count": 8}}, "cpu_count: 2 there, 8 asked for"),
        ({"experiment": "other"}, "experiment: sweep there, other asked for"),
    ],
)
def test_a_folder_of_another_run_is_refused_with_what_differs(tmp_path, change, named):
    fill(tmp_path / "run", CELLS[:1])
    before = (tmp_path / "run" / "config.json").read_text()
    with pytest.raises(UserError, match=named):
        open_run(tmp_path / "run", **change)
    assert (tmp_path / "run" / "config.json").read_text() == before
    fill(tmp_path / "run")  # the refusal let go of the lock


def test_a_folder_with_other_files_is_not_taken_over(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"thesis\.tex but no config\.json"):
        open_run(tmp_path)
    with pytest.raises(UserError, match="cannot be made a folder"):
        open_run(tmp_path / "thesis.tex")


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    fill(tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    for broken in ("{]\n", "[1]\n", '{"mode": "planned"}\n'):
        metrics.write_text("".join([*lines[:4], broken, *lines[4:]]))
        with pytest.raises(UserError, match=r"metrics\.jsonl:5: expected"):
            read_rows(tmp_path / "run")
        with pytest.raises(UserError, match=r"metrics\.jsonl:5: expected"):
            open_run(tmp_path / "run")


def test_rows_must_fit_the_cell(tmp_path):
    with open_run(tmp_path / "run") as run:
        with pytest.raises(ValueError, match="repeats the cell's parameters: mode"):
            run.write_cell(CELLS[0], [{"mode": "x"}], count=1)
        with pytest.raises(ValueError, match="announced with 4 rows and had 3"):
            run.write_cell(CELLS[0], rows_of(CELLS[0]), count=4)
    with open_run(tmp_path / "run") as run:
        run.write_cell(CELLS[0], rows_of(CELLS[0]), count=3)
        with pytest.raises(ValueError, match="is finished"):
            run.write_cell(CELLS[0], rows_of(CELLS[0]), count=3)


def test_dated_folders_do_not_collide(tmp_path):
    runs = [
        RunFolder.open(None, "sweep", CONFIG, ENVIRONMENT, runs=tmp_path / "runs") for _ in range(3)
    ]
    assert len({run.path for run in runs}) == 3
    for run in runs:
        run.close()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, width=16)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)


@hypothesis.given(parameters=st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_the_key_is_by_content(parameters):
    key = cell_key(parameters)
    assert key == cell_key(dict(reversed(parameters.items())))
    assert key == cell_key(
        json.loads(json.dumps(parameters).replace("-Infinity", "null").replace("Infinity", "null"))
    )
    assert key != cell_key({**parameters, "one more": 1})
    assert differences(parameters, parameters) == []
    assert differences(parameters, {**parameters, "one more": 1}) == [
        "one more: nothing there, 1 asked for"
    ]
