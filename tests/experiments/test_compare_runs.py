"""Two run folders side by side, on folders written by the run folder itself."""

import csv

import pytest

from experiments import compare_runs
from experiments.compare_runs import CompareRuns, Difference, compare, parameters_of
from experiments.errors import UserError
from experiments.run_folder import RunFolder, read_rows


def make_run(path, times, *, config=None, recomputed=100, experiment="ablate_interval"):
    """A run with one cell a repeat, each with two requests; `times` are means of the two."""
    environment = {"python": "3", "devices": ["cpu:cpu"]}
    with RunFolder.open(path, experiment, config or {"tile": 64}, environment) as run:
        for repeat, time_s in enumerate(times):
            rows = [
                {
                    "request": index,
                    "recomputed": recomputed,
                    "time_to_first_token_s": time_s + 0.1 * (2 * index - 1),
                    "reason": "hit",
                    "exact": True,
                }
                for index in range(2)
            ]
            run.write_cell({"mode": "in_pass", "interval": 4, "repeat": repeat}, rows, 2)
    return path


def verdicts(left, right):
    return {d.measure: d.verdict for d in compare(read_rows(left), read_rows(right))}


def test_spread_decides(tmp_path):
    left = make_run(tmp_path / "a", [1.0, 1.2, 1.4])
    assert verdicts(left, left) == {"recomputed": "same", "time_to_first_token_s": "within"}
    overlapping = make_run(tmp_path / "b", [1.3, 1.5, 1.6])
    apart = make_run(tmp_path / "c", [1.5, 1.6, 1.7], recomputed=90)
    assert verdicts(left, overlapping)["time_to_first_token_s"] == "within"
    assert verdicts(left, apart) == {"recomputed": "beyond", "time_to_first_token_s": "beyond"}
    (found,) = (d for d in compare(read_rows(left), read_rows(apart)) if not d.count)
    assert found.left == pytest.approx((1.0, 1.2, 1.4))  # one value a repeat, over its requests
    assert found.change == pytest.approx((1.6 - 1.2) / 1.2)
    assert found.cell == {"mode": "in_pass", "interval": 4}


def test_one_measurement_has_no_spread_but_a_count_needs_none(tmp_path):
    left, right = make_run(tmp_path / "a", [1.0]), make_run(tmp_path / "b", [9.0], recomputed=90)
    assert verdicts(left, right) == {"recomputed": "beyond", "time_to_first_token_s": "once"}
    repeated = make_run(tmp_path / "c", [1.0, 2.0])
    assert verdicts(left, repeated)["time_to_first_token_s"] == "within"


def test_a_change_from_nothing_has_no_ratio():
    assert Difference({}, "replayed", (0,), (7,), count=True).change is None


def test_it_says_what_changed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    left = make_run(tmp_path / "a", [1.0, 1.1], config={"tile": 64, "workload": {"name": "old"}})
    right = make_run(tmp_path / "b", [2.0, 2.1], config={"tile": 128, "workload": {"name": "new"}})
    with RunFolder.open(
        right, "ablate_interval", {"tile": 128, "workload": {"name": "new"}},
        {"python": "3", "devices": ["cpu:cpu"]},
    ) as run:  # fmt: skip
        run.write_cell({"mode": "naive", "interval": 4, "repeat": 0}, [{"recomputed": 1}], 1)
    table = tmp_path / "all.csv"
    compare_runs.run(CompareRuns(left, right, csv=table))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 + len(str(tmp_path))
    for text in ("tile", "workload.name", "old", "new", "only in", "naive", "beyond", "+95.2%"):
        assert text in shown, text
    with table.open() as file:
        found = {row["measure"]: row["verdict"] for row in csv.DictReader(file)}
    assert found == {"recomputed": "same", "time_to_first_token_s": "beyond"}
    compare_runs.run(CompareRuns(left, left))
    assert "are the same" in capsys.readouterr().out


def test_wrong_use_is_named(tmp_path):
    left = make_run(tmp_path / "a", [1.0])
    other = make_run(tmp_path / "b", [1.0], experiment="tail_split")
    with pytest.raises(UserError, match="expected two of one experiment"):
        compare_runs.run(CompareRuns(left, other))
    with pytest.raises(UserError, match="expected a run folder"):
        compare_runs.run(CompareRuns(left, tmp_path / "nothing"))
    with pytest.raises(UserError, match="does not come from its parameters"):
        parameters_of({"cell": "0" * 16, "cell_rows": 1, "mode": "naive"})
