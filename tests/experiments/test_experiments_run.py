"""The experiments end to end on the tiny preset, in one process so that nothing starts twice."""

import json
import sys

import pytest

from experiments import ablate_interval, run_table, tail_split
from experiments.errors import UserError, run_main
from experiments.run_folder import read_config, read_rows
from tests.shared_data import shared_trace


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs an experiment's command line; programs of equal shapes are compiled once."""
    cache = tmp_path_factory.mktemp("compilation_cache")

    def call(module, out, *arguments):
        name = module.__name__.rpartition(".")[2]
        options = ("--out", out, "--quick", "--compilation-cache", cache)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [name, *map(str, (*options, *arguments))])
            patch.setenv("COLUMNS", "80")
            run_main(module.main)

    return call


@pytest.fixture(scope="module")
def swept(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "run"
    run(ablate_interval, out)
    return out


def test_a_sweep_leaves_a_whole_run_folder(swept):
    names = {path.name for path in swept.iterdir()}
    assert names >= {"config.json", "metrics.jsonl", "summary.csv", "interval.png", "answers.json"}
    config = read_config(swept)
    assert config["config"]["preset"] == "tiny"
    assert {"jax", "jaxlib", "flax", "numpy", "python", "devices", "cpu_count"} <= set(
        config["environment"]
    )
    rows = read_rows(swept)
    cells = {(row["mode"], row["interval"], row["cache_mb"]) for row in rows}
    assert len(cells) == 1 + 2 * 2 * 2
    assert len(rows) == len(cells) * config["config"]["workload"]["requests"]
    for row in rows:
        assert row["recomputed"] == row["total"] - row["restored"]
        assert row["matched"] == row["restored"] + row["replayed"] == row["total"] - row["suffix"]
        assert row["time_to_first_token_s"] > 0
        assert row["mode"] != "off" or row["restored"] == 0


def test_a_fine_interval_computes_less_and_keeps_more(swept):
    def total(name, interval):
        return sum(
            row[name]
            for row in read_rows(swept)
            if (row["mode"], row["interval"], row["cache_mb"]) == ("in_pass", interval, None)
        )

    assert total("recomputed", 4) < total("recomputed", 0)
    assert total("snapshot_bytes", 4) > total("snapshot_bytes", 0) > 0
    assert total("total", 4) == total("total", 0)


def test_a_sweep_that_was_cut_off_goes_on_and_a_finished_one_runs_nothing(run, swept, monkeypatch):
    metrics, answers = swept / "metrics.jsonl", swept / "answers.json"
    before, recorded = read_rows(swept), answers.read_text()
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:-3]) + lines[-3][:40])
    answers.unlink()  # the answers are made again, the same ones
    run(ablate_interval, swept)
    assert answers.read_text() == recorded
    timing = "time_to_first_token_s"
    for old, new in zip(before, read_rows(swept), strict=True):
        assert {**old, timing: 0} == {**new, timing: 0}

    monkeypatch.setattr(ablate_interval.Sweep, "build", None)
    run(ablate_interval, swept)


def test_a_run_makes_a_row_of_the_run_table(swept, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["run_table", str(swept)])
    run_table.main()
    (row,) = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1].startswith("`ablate_interval --quick` on ")
    assert "in_pass at interval 4 computes" in cells[-1]
    with pytest.raises(UserError, match="expected a run folder"):
        run_table.row(tmp_path)


def test_another_workload_in_the_same_folder_is_refused(run, swept, capsys):
    with pytest.raises(SystemExit) as caught:
        run(ablate_interval, swept, "--seed", 1)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --out ")
    assert "seed: 0 there, 1 asked for" in error
    assert "workload.digest" in error


def test_a_trace_of_ids_runs_scaled(run, tmp_path):
    shared, blocks = [0, 1, 2, 3], 4
    rows = []
    for number in range(3):
        ids = [*shared, blocks + 2 * number, blocks + 2 * number + 1]
        length = 512 * len(ids) - 100
        rows.append(
            {"timestamp": number, "input_length": length, "output_length": 1, "hash_ids": ids}
        )
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(ablate_interval, tmp_path / "run", "--trace", trace, "--scale", 0.0625)
    found = [row for row in read_rows(tmp_path / "run") if row["mode"] == "in_pass"]
    assert {row["total"] for row in found} == {(6 * 512 - 100) // 16}
    shared_tokens = 4 * 32
    for row in found:
        assert row["matched"] == (shared_tokens if row["request"] else 0)


def test_an_unknown_preset_is_one_line(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        run(ablate_interval, tmp_path / "run", "--preset", "huge")
    assert caught.value.code == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("error: --preset huge: unknown preset 'huge'; expected one of")


def test_the_story_of_the_tail_in_small(run, tmp_path):
    run(tail_split, tmp_path / "run")
    found = {row["mode"]: row for row in tail_split.summarise(read_rows(tmp_path / "run"))}
    counts = {
        mode: tuple(row[name] for name in ("matched", "restored", "replayed", "recomputed"))
        for mode, row in found.items()
    }
    assert counts == {
        "naive": (1024, 769, 255, 259),
        "chunk_end": (1024, 1008, 16, 20),
        "planned": (1024, 960, 64, 68),
        "in_pass": (1024, 1024, 0, 4),
    }
    assert all(row["same_first_token"] for row in found.values())
    assert found["naive"]["ratio_of_flops"] < 4 < 8 < found["in_pass"]["ratio_of_flops"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("lmcache-agent/miniswe.jsonl.gz", 0.02),
        ("lmcache-agent/magagent.jsonl.gz", 0.05),
        ("mooncake/conversation_trace.jsonl.gz", 0.125),
        ("weka/trace_0012.json", 0.125),
    ],
)
def test_real_traces_run(run, tmp_path, name, scale):
    arguments = ("--trace", shared_trace(name), "--scale", scale, "--modes", "in_pass")
    run(ablate_interval, tmp_path / "run", *arguments)
    rows = read_rows(tmp_path / "run")
    assert sum(row["restored"] for row in rows) > 0
