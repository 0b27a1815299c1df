"""Constants that are picked on the other traces: what is picked, end to end, and wrong use."""

import dataclasses
import json
import math
import re
import sys

import pytest

from experiments import compare_policies, leave_one_out, run_table
from experiments.errors import UserError, run_main
from experiments.leave_one_out import CONSTANTS, PUBLISHED_EVICTIONS, grid
from experiments.leave_one_out_report import DEFAULTS, Judged, judged, picked, verdict
from experiments.policy_standings import OWN
from experiments.run_folder import METRICS, read_config, read_rows
from planner.demand_constants import DemandConstants
from tests.experiments.talk_trace import write_talk


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Sixty requests, and the first forty of them."""
    long = write_talk(tmp_path_factory.mktemp("traces") / "long.jsonl")
    short = long.with_name("short.jsonl")
    short.write_text("".join(long.read_text().splitlines(keepends=True)[:40]))
    return long, short


def run(module, out, *arguments):
    options = ("--out", out, "--model", "tiny", "--workers", 1, *arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module.__name__, *map(str, options)])
        patch.setenv("COLUMNS", "80")
        run_main(module.main)


VARY = ("--vary", "forget", "prior_events")
BUDGETS = ("--snapshots", "3", "8")


@pytest.fixture(scope="module")
def compared(traces, tmp_path_factory):
    """A comparison of placements on the same traces, each at both budgets."""
    out = tmp_path_factory.mktemp("compared") / "run"
    run(compare_policies, out, "--trace", *traces, "--placements", "sglang", "every:1024tok",
        "--evictions", "lru", "served_demand", *BUDGETS)  # fmt: skip
    return out


@pytest.fixture(scope="module")
def judged_run(traces, tmp_path_factory):
    out = tmp_path_factory.mktemp("judged") / "run"
    table = out.parent / "new" / "table.md"
    run(leave_one_out, out, "--trace", *traces, *VARY, *BUDGETS, "--table", table)
    return out


def test_the_grid_halves_and_doubles_one_constant_at_a_time():
    found = grid(CONSTANTS)
    base = DemandConstants()
    assert found[DEFAULTS] == base
    assert len(found) == 1 + 2 * len(CONSTANTS) == len(set(found.values()))
    for name, constants in found.items():
        different = [
            field for field in CONSTANTS if getattr(constants, field) != getattr(base, field)
        ]
        assert len(different) == (name != DEFAULTS)
        if different == ["forget"]:
            ratio = (1 - constants.forget) / (1 - base.forget)
        elif different:
            ratio = getattr(constants, different[0]) / getattr(base, different[0])
        else:
            continue
        assert ratio == pytest.approx(2.0 if name.endswith("x 2") else 0.5)


def judge(trace, published=100, **own):
    return Judged(trace, 3, 1000, own, {("last", "lru"): published}, 1, 0)


def test_the_trace_that_is_left_out_has_no_say():
    """On c, x is far best; on the others it is worst."""
    found = [
        judge("a", defaults=80, x=90, y=70),
        judge("b", defaults=80, x=90, y=85),
        judge("c", defaults=80, x=1, y=60),
    ]
    assert picked(found, found[2]) == "y"
    assert picked(found, found[0]) == picked(found, found[1]) == "x"
    assert verdict(found) == (
        "Traces with at least 15% fewer tokens replayed than the best published pair: 1 of 3 (c) "
        "with the constants picked on the others, 3 of 3 (a, b, c) with the defaults, 1 of 3 (c) "
        "with the worst of the grid."
    )


def test_every_trace_counts_by_ratios_and_ties_leave_the_defaults():
    """A small trace that doubles weighs as much as a large one that halves."""
    found = [
        judge("large", defaults=10**6, a=10**6 // 2),
        judge("small", defaults=10, a=25),
        judge("c", defaults=1, a=1),
    ]
    assert picked(found, found[2]) == DEFAULTS
    assert picked(found, found[1]) == "a"
    assert picked([judge("a", a=3, defaults=3), found[2]], found[2]) == DEFAULTS
    assert picked([judge("a", a=0, defaults=3), found[2]], found[2]) == "a"


def test_nothing_replayed_by_published_ones_leaves_no_gain():
    perfect = judge("a", published=0, defaults=5)
    assert perfect.gain(DEFAULTS) is None
    assert "0 of 2 with the defaults" in verdict([perfect, judge("b", defaults=100)])


def test_every_cell_is_there_and_the_table_follows_from_it(judged_run, traces):
    rows = read_rows(judged_run)
    assert len(rows) == 2 * (5 + len(PUBLISHED_EVICTIONS))
    assert {(row["trace"], row["snapshots"]) for row in rows} == {("long", 3), ("short", 8)}
    found = judged(rows)
    assert [j.trace for j in found] == ["long", "short"]
    for here, other in (found, found[::-1]):
        assert picked(found, here) in [
            name for name, count in other.own.items() if count == min(other.own.values())
        ]
        assert here.published.keys() == {("sglang", name) for name in PUBLISHED_EVICTIONS}
    text = (judged_run.parent / "new" / "table.md").read_text()
    assert text == (judged_run / "tables.md").read_text()
    assert (
        "python -m experiments.leave_one_out --trace long=traces/long.jsonl.gz "
        "short=traces/short.jsonl.gz --model tiny --snapshots 3 8 --vary forget prior_events "
        "--placements sglang --table FILE"
    ) in text
    assert "Not run of the placements that compare_policies takes by default: `every:81" in text
    assert str(traces[0].parent) not in text + json.dumps(read_config(judged_run))
    shares = re.search(r"\| long \| 3 \| (\S+%) \| sglang \+ \w+ \| (\S+%) \| (\S+%) \|", text)
    own, best = found[0].own, min(found[0].published.values())
    for shown, count in zip(
        shares.groups(), (best, own[DEFAULTS], own[picked(found, found[0])]), strict=True
    ):
        assert float(shown[:-1]) == pytest.approx(100 * count / found[0].matched, rel=1e-2)
    assert "fewer tokens replayed" in run_table.row(judged_run)


def test_defaults_are_what_served_demand_does(judged_run, compared):
    there = {
        (row["trace"], row["snapshots"], row["placement"], row["eviction"]): row["replayed"]
        for row in read_rows(compared)
        if row["kind"] == "policy"
    }
    for judge in judged(read_rows(judged_run)):
        assert judge.own[DEFAULTS] == there[judge.trace, judge.snapshots, *OWN]
        assert (
            judge.published["sglang", "lru"] == there[judge.trace, judge.snapshots, "sglang", "lru"]
        )


def test_constants_make_a_difference_where_they_should(judged_run):
    assert any(len(set(judge.own.values())) > 1 for judge in judged(read_rows(judged_run)))


def test_finished_cells_are_skipped_and_more_placements_added(judged_run, traces, compared, capsys):
    again = ("--trace", *traces, *VARY, *BUDGETS)
    run(leave_one_out, judged_run, *again)
    shown = capsys.readouterr().out
    assert "0 of 20 cells to run" in shown
    assert max(len(line) for line in shown.splitlines() if str(judged_run) not in line) <= 80
    assert "…" not in shown
    before = judged(read_rows(judged_run))
    content = (judged_run / METRICS).read_text()
    tables = (judged_run / "tables.md").read_text()
    try:
        run(leave_one_out, judged_run, *again, "--against", compared)
        text = (judged_run / "tables.md").read_text()
        assert "--placements sglang --against DIR --table FILE" in text
        assert "long 5 and the best of 2 of an earlier run" in text
        there = {
            (row["trace"], row["snapshots"]): row["replayed"]
            for row in sorted(read_rows(compared), key=lambda row: -row["replayed"])
            if row["kind"] == "policy" and row["eviction"] == "lru"
        }
        for old, new in zip(before, judged(read_rows(judged_run)), strict=True):
            assert min(new.published.values()) == min(
                *old.published.values(), there[new.trace, new.snapshots]
            )
        run(leave_one_out, judged_run, *again, "--placements", "last")
        assert "10 of 20 cells to run" in capsys.readouterr().out
    finally:
        (judged_run / METRICS).write_text(content)
        (judged_run / "tables.md").write_text(tables)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--snapshots", "3"), "--snapshots 3: expected one a trace, 2"),
        (("--snapshots", "3", "0"), "--snapshots 0: expected at least 1"),
        (("--vary", "nosuch"), "--vary nosuch: expected one of remembered, forget, "),
        (("--vary", "forget", "forget"), "--vary forget forget: expected at least one value, each"),
        (("--placements", "nosuch"), "unknown placement 'nosuch'"),
        (("--placements", "every:x"), "placement 'every' takes interval: int; got 'x'"),
        (("--model", "nosuch"), "--model nosuch: unknown preset"),
        (("--tile", "700"), "--tile 700: expected a multiple of the blocks of long, 512"),
        (("--workers", "0"), "--workers 0: expected at least 1"),
        (("--against", "nosuch"), "nosuch/config.json: "),
    ],
)
def test_wrong_use_is_one_clear_line(arguments, message, traces, tmp_path, capsys):
    check_refused(tmp_path, ("--trace", *traces, *arguments), message, capsys)


def test_traces_that_do_not_do_are_one_clear_line(traces, tmp_path, capsys):
    for given, message in (
        (traces[:1], "expected at least two, to leave one out"),
        ((traces[0], traces[0]), "expected different names, got long, long"),
        ((traces[0], tmp_path / "nosuch.jsonl"), "nosuch.jsonl"),
    ):
        check_refused(tmp_path, ("--trace", *given), message, capsys)


def test_a_table_that_cannot_be_written_is_refused_first(traces, tmp_path, capsys):
    table = ("--table", tmp_path)
    message = f"--table {tmp_path}: expected a file, found a folder"
    check_refused(tmp_path, ("--trace", *traces, *table), message, capsys)


def check_refused(tmp_path, arguments, message, capsys):
    """One line, no traceback, a code that is not 0, and nothing left behind."""
    with pytest.raises(SystemExit) as stopped:
        run(leave_one_out, tmp_path / "run", *arguments)
    shown = capsys.readouterr()
    assert stopped.value.code == 2
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "run").exists()


def other(folder, tmp_path, config=None, rows=None):
    """A run folder with its configuration or rows changed."""
    path = tmp_path / "other"
    path.mkdir()
    content = read_config(folder)
    (config or (lambda content: None))(content)
    (path / "config.json").write_text(json.dumps(content))
    kept = [row for row in read_rows(folder) if rows is None or rows(row)]
    (path / METRICS).write_text("".join(json.dumps(row) + "\n" for row in kept))
    return path


@pytest.mark.parametrize(
    ("config", "rows", "budgets", "message"),
    [
        (lambda c: c.update(experiment="tail"), None, ("3", "8"), "expected compare_policies"),
        (lambda c: c["config"].update(model="x"), None, ("3", "8"), "model x there, tiny here"),
        (lambda c: c["config"].update(kv_gb=2), None, ("3", "8"), "kv_gb 2 there, null here"),
        (lambda c: c["config"].update(tile=1024), None, ("3", "8"), "tile 1024 there"),
        (
            lambda c: [trace.update(digest="") for trace in c["config"]["traces"]],
            None, ("3", "8"), "holds none of long, short",
        ),
        (None, None, ("3", "9"), "short at 3, 8 snapshots, expected 9 among them"),
        (
            None,
            lambda row: (row["trace"], row.get("placement"), row.get("eviction"))
            != ("short", "sglang", "lru"),
            ("3", "8"),
            "short has 1 of 2 published pairs; expected a finished run",
        ),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_compared_with_is_refused(
    config, rows, budgets, message, compared, traces, tmp_path, capsys
):
    path = other(compared, tmp_path, config, rows)
    arguments = ("--trace", *traces, "--snapshots", *budgets, "--against", path)
    check_refused(tmp_path, arguments, message, capsys)


def test_half_a_run_has_no_table(judged_run):
    rows = read_rows(judged_run)
    for kept, message in (
        ([row for row in rows if row["trace"] == "long"], "at least two traces"),
        (
            [row for row in rows if row["kind"] == "own"],
            "long: not all of its replays are finished",
        ),
        (rows[1:], "long: not all of its replays are finished"),
    ):
        with pytest.raises(UserError, match=message):
            judged(kept)
    doctored = [rows[0] | {"matched": 1}, *rows[1:]]
    with pytest.raises(UserError, match="match different numbers of tokens: 1, "):
        judged(doctored)


def test_quick_shrinks(traces):
    options = leave_one_out.LeaveOneOut(
        trace=tuple(map(str, traces)), snapshots=(3, 800), model="tiny"
    )
    assert options.shrunk() is options
    shrunk = dataclasses.replace(options, quick=True).shrunk()
    assert (shrunk.max_requests, shrunk.snapshots, len(shrunk.vary)) == (200, (3, 10), 1)
    assert dataclasses.replace(options, snapshots=()).budget(0, 400) == 3
    assert math.isfinite(shrunk.timing().overhead_s)
