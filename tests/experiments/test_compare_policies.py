"""The policy comparison end to end on small traces, and the page and tables that come of it."""

import dataclasses
import json
import re
import sys
from html.parser import HTMLParser

import pytest

from experiments import compare_policies, run_table
from experiments.compare_policies import ComparePolicies, tasks_of
from experiments.errors import UserError, run_main
from experiments.policy_cells import COMPARED_EVICTIONS, DEPTH_BINS, run_tasks, unfinished
from experiments.policy_options import placement_for
from experiments.policy_standings import KNOWING, OWN, Standing, by_trace, ranking, standings
from experiments.run_folder import METRICS, RunFolder, read_config, read_rows
from tests.experiments.talk_trace import write_talk


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_talk(tmp_path_factory.mktemp("traces") / "talk.jsonl")


def run(out, trace, *arguments):
    options = ("--trace", trace, "--out", out, "--model", "tiny", "--workers", 1, *arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["compare_policies", *map(str, options)])
        patch.setenv("COLUMNS", "80")
        run_main(compare_policies.main)


CELLS = 3 * (1 + 3 * len(COMPARED_EVICTIONS))
POLICIES = ("--placements", "last", "sglang", "every:1024tok", "--snapshots", "3", "8", "20")


@pytest.fixture(scope="module")
def compared(trace, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "run"
    run(out, trace, *POLICIES, "--table", out.parent / "tables.md")
    return out


def test_every_cell_is_there_and_adds_up(compared):
    found = standings(read_rows(compared))
    assert [s.snapshots for s in found] == [3, 8, 20]
    for standing in found:
        assert len(standing.policies) == 3 * len(COMPARED_EVICTIONS)
        for row in standing.policies.values():
            assert row["total"] == row["restored"] + row["recomputed"] == standing.bound["total"]
            assert row["matched"] == row["restored"] + row["replayed"] == standing.bound["matched"]
            assert row["replayed"] >= standing.bound["replayed"]  # nobody beats the bound
            for counts in (row["restored_at"], row["matched_at"]):
                assert len(counts) == DEPTH_BINS + 1
                assert sum(counts) == row["total"]
            assert row["requests"] == sum(row["reasons"].values()) == 60
            assert 0 < row["p50_time_to_first_token_s"] <= row["p99_time_to_first_token_s"]
        assert standing.bound["achieved_replayed"] >= standing.bound["replayed"]
        for placement in ("last", "sglang", "every:1024tok"):
            known = standing.replayed_share((placement, KNOWING))
            for eviction in COMPARED_EVICTIONS:
                assert known <= standing.replayed_share((placement, eviction))
        assert standing.published[1] not in (KNOWING, OWN[1])
    assert not [pair for pair in ranking(found) if pair[1] == KNOWING]
    assert len(ranking(found, knowing=True)) == 3
    shares = [standing.replayed_share(("sglang", "lru")) for standing in found]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_ranking_and_gain_follow_the_figures():
    def row(recomputed):
        return {"recomputed": recomputed, "total": 100, "matched": 80}

    bound = row(20) | {"replayed": 0, "bound": "exact"}
    policies = {("last", "lru"): row(60), ("tail", "lru"): row(40), OWN: row(30)}
    standing = Standing("t", 3, bound, policies)
    assert ranking([standing]) == [OWN, ("tail", "lru"), ("last", "lru")]
    assert standing.published == ("tail", "lru")
    assert standing.replayed_share(("tail", "lru")) == 0.25
    assert standing.gain() == pytest.approx(0.5)
    harder = Standing("t", 3, row(25) | {"replayed": 5}, policies)
    assert harder.gap_closed() == pytest.approx(2 / 3)
    assert by_trace([standing]) == {"t": [standing]}


class Page(HTMLParser):
    """Links and tags of a page; every tag that is opened must be closed."""

    VOID = frozenset({"meta", "link", "br", "img", "path", "use", "rect", "clipPath"})

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.outside = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.outside += [
            value
            for name, value in attributes
            if name in ("href", "src", "xlink:href") and not value.startswith("#")
        ]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_stands_alone(compared):
    text = (compared / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.outside == []
    assert page.seen.count("svg") == 4
    assert "@import" not in text
    assert "url(http" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert used
    assert set(used) <= set(ids)
    assert str(compared.parent) not in text


def test_tables_say_how_they_were_made_and_hold_no_path(compared, trace):
    text = (compared.parent / "tables.md").read_text()
    assert text == (compared / "tables.md").read_text()
    assert "python -m experiments.compare_policies --trace talk=PATH --model tiny" in text
    assert str(trace.parent) not in text + json.dumps(read_config(compared))
    assert text.count("| every:1024tok |") == len(COMPARED_EVICTIONS)
    assert re.search(r"\| sglang \| served_demand( \| \d+\.\d+% \+\d+\.\d){3} \|", text)
    below = text.index("with an eviction that knows the future")
    assert text.index("| sglang | clairvoyant |") > below > text.index("| sglang | lru |")
    assert "Not run of what the command compares by default: `every:8192tok`" in text


def test_a_cut_off_run_goes_on_and_a_finished_one_runs_nothing(compared, trace, capsys):
    before = read_rows(compared)
    run(compared, trace, *POLICIES)
    shown = capsys.readouterr().out
    assert f"0 of {CELLS} cells to run" in shown
    assert max(len(line) for line in shown.splitlines() if str(compared) not in line) <= 80
    lines = (compared / METRICS).read_text().splitlines(keepends=True)
    (compared / METRICS).write_text("".join(lines[1:-3]) + lines[-3][:30])
    run(compared, trace, *POLICIES)
    assert f"4 of {CELLS} cells to run" in capsys.readouterr().out

    def figures(rows):
        return sorted((r["cell"], r["recomputed"], r.get("restored_at")) for r in rows)

    assert figures(read_rows(compared)) == figures(before)


def test_processes_give_what_one_gives(trace, compared):
    options = ComparePolicies(
        trace=(str(trace),), model="tiny", placements=("sglang",), evictions=("served_demand",),
        snapshots=(3, 8),
    )  # fmt: skip
    (source,) = options.sources()
    tasks = tasks_of(options, source, source.load())
    found = {json.dumps(cell): row for cell, row in run_tasks(tasks, 2)}
    assert len(found) == 4
    there = [row for row in read_rows(compared) if row["snapshots"] in (3, 8)]
    for cell, row in found.items():
        same = [r for r in there if all(r[k] == v for k, v in json.loads(cell).items())]
        assert [r["recomputed"] for r in same] == [row["recomputed"]]


def test_part_of_the_bounds_may_be_there(trace, tmp_path):
    options = ComparePolicies(trace=(str(trace),), model="tiny", placements=("last",))
    (source,) = options.sources()
    bounds, *others = tasks_of(options, source, source.load())
    assert [cell["snapshots"] for cell in bounds.cells] == [1, 3, 10]  # a quarter of 60 requests
    with RunFolder.open(tmp_path / "run", "x", {}, {}) as folder:
        folder.write_cell(bounds.cells[1], [{"replayed": 0}], 1)
        rest, *same = unfinished(folder, [bounds, *others])
    assert rest == dataclasses.replace(bounds, cells=(bounds.cells[0], bounds.cells[2]))
    assert same == others


def test_the_run_table_has_a_row_for_it(compared):
    assert "replay against the best published pair: talk" in run_table.row(compared)


def test_intervals_in_tokens_follow_the_block_size():
    assert placement_for("last|every:1024tok", 512).spec == "last|every:2"
    assert placement_for("vllm:1024", 512).spec == "vllm:1024"
    with pytest.raises(ValueError, match="1000 tokens are no whole number of blocks of 512"):
        placement_for("every:1000tok", 512)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--placements", "nosuch"), "unknown placement 'nosuch'"),
        (("--evictions", "nosuch"), "--evictions nosuch: expected one of lru, "),
        (("--placements", "last", "last"), "--placements last last: expected at least one value"),
        (("--snapshots", "0"), "--snapshots 0: expected at least 1"),
        (("--model", "nosuch"), "--model nosuch: unknown preset"),
        (("--tile", "700"), "--tile 700: expected a multiple of the blocks of talk, 512"),
        (("--tile", "1024", "--placements", "every:1"), "off the grid of 1024 tokens"),
        (("--tile", "1024", "--placements", "vllm:512"), "off the grid of 1024 tokens"),
        (("--placements", "every:x"), "placement 'every' takes interval: int; got 'x'"),
        (("--placements", "tail|every:700tok"), "no whole number of blocks of 512"),
        (("--trace", "name="), "--trace name=: expected a path, or NAME=PATH"),
        (("--max-requests", "0"), "--max-requests 0: expected at least 1"),
        (("--kv-gb", "0"), "--kv-gb 0.0: expected more than 0"),
        (("--workers", "0"), "--workers 0: expected at least 1"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments, message, trace, tmp_path, capsys):
    check_refused(tmp_path, trace, arguments, message, capsys)


def check_refused(tmp_path, trace, arguments, message, capsys):
    """One line, no traceback, a code that is not 0, and nothing left behind."""
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path / "run", trace, *arguments)
    shown = capsys.readouterr()
    assert stopped.value.code == 2
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "run").exists()


def broken(tmp_path, trace, change):
    """The trace with a change made to its lines."""
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    change(rows)
    path = tmp_path / "broken.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def swap_times(rows):
    rows[3]["timestamp"], rows[4]["timestamp"] = rows[4]["timestamp"], rows[3]["timestamp"]


def swap_ids(rows):
    ids = rows[2]["hash_ids"]
    ids[1], ids[2] = ids[2], ids[1]


def other_chain(rows):
    rows[5]["hash_ids"][1] = 2  # what came after block 1 comes after block 2


def drop_field(rows):
    del rows[1]["input_length"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_times, "broken.jsonl:5: timestamp: expected at least the one of the line before"),
        (swap_ids, "broken.jsonl:3: hash_ids[2]: ids out of order, expected more than"),
        (other_chain, "broken.jsonl:6: ids out of order: block 2"),
        (drop_field, "broken.jsonl:2: lacks 'input_length', expected an integer of at least 1"),
        (list.clear, "broken.jsonl: holds no request"),
    ],
)
def test_a_trace_out_of_order_is_one_clear_line(change, message, trace, tmp_path, capsys):
    check_refused(tmp_path, broken(tmp_path, trace, change), (), message, capsys)


def test_a_table_that_cannot_be_written_is_refused_first(trace, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for table, message in (
        (tmp_path, "expected a file, found a folder"),
        (tmp_path / "file" / "table.md", "file"),
    ):
        check_refused(tmp_path, trace, ("--table", table), f"--table {table}: ", capsys)
        check_refused(tmp_path, trace, ("--table", table), message, capsys)


def test_two_traces_of_one_name_need_names(trace):
    with pytest.raises(UserError, match="expected different names, got talk, talk"):
        ComparePolicies(trace=(str(trace), f"talk={trace}")).sources()
    named = ComparePolicies(trace=(str(trace), f"again={trace}")).sources()
    assert [source.name for source in named] == ["talk", "again"]
