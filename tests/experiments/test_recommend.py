"""The recommendation: what is tried, what is chosen, and what a user reads."""

import re
import sys

import numpy as np
import pytest

from experiments import recommend
from experiments.errors import UserError, run_main
from experiments.policy_options import measured_timing, preset_costs
from experiments.recommend import Choice, best, choices
from experiments.run_folder import RunFolder
from planner.costs import prefill_flops
from planner.eviction_policies import make_eviction
from planner.placement import parse_placement
from tests.experiments.talk_trace import write_talk


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_talk(tmp_path_factory.mktemp("traces") / "talk.jsonl")


def run(trace, *arguments):
    options = ("--trace", trace, "--model", "tiny", "--workers", 1, *arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["recommend", *map(str, options)])
        patch.setenv("COLUMNS", "80")
        run_main(recommend.main)


def test_what_it_says_can_be_set_and_is_true(trace, capsys):
    run(trace, "--budget-gb", "0.01", "--tflops", "0.001")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    text = " ".join(shown.split())
    assert "For traffic like talk (60 requests" in text
    parse_placement(re.search(r'parse_placement\("(.*?)"\)', text)[1])
    name = re.search(r'make_eviction\("(.*?)"', text)[1]
    make_eviction(name, preset_costs("tiny", "bfloat16", "--model"), 512)
    assert "cache_budget_bytes=10000000" in text
    rows = dict(re.findall(r"(no cache|half|as asked|twice|no limit) +([\d.]+)%", shown))
    shares = [float(rows[name]) for name in ("no cache", "half", "as asked", "twice", "no limit")]
    assert shares == sorted(shares)
    assert shares[0] == 0 < shares[2]
    assert f"Expect {rows['as asked']}% of all prompt tokens" in text
    points = float(re.search(r"Twice the memory would bring ([+-][\d.]+) points", text)[1])
    assert points == pytest.approx(shares[3] - shares[2], abs=0.11)
    assert "Where an interval is all that can be set" in text
    assert "0.001 TFLOP/s" in text


def test_too_much_memory_is_said_to_buy_nothing(trace, capsys):
    run(trace, "--budget-gb", "50")
    text = " ".join(capsys.readouterr().out.split())
    assert "Twice the memory would change nothing. Half of it would change nothing." in text
    assert "GB were ever in use" in text


def test_as_good_with_fewer_captures_is_better():
    first, second, third = (Choice(name, "lru") for name in ("last", "tail", "sglang"))
    rows = {
        first: {"mean_time_to_first_token_s": 1.0, "captured": 90},
        second: {"mean_time_to_first_token_s": 1.009, "captured": 10},
        third: {"mean_time_to_first_token_s": 1.02, "captured": 1},
    }
    assert best(rows, rows) == second
    assert best(rows, [first, third]) == first


def test_choices_fit_the_grid():
    for block_size, tile in ((512, 512), (64, 64), (16, 48), (512, 65536)):
        found = choices(block_size, tile)
        assert len(set(found)) == len(found)
        for choice in found:
            assert choice.interval * block_size % tile == 0
            parse_placement(choice.placement)
        assert any(choice.only_interval for choice in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--model", "bamba-9b", "--budget-gb", "0.2"),
            "--budget-gb 0.2: half of it must hold a snapshot of bamba-9b",
        ),
        (("--budget-gb", "0"), "--budget-gb 0.0: expected a number above 0"),
        (("--budget-gb", "inf"), "--budget-gb inf: expected a number above 0"),
        (("--budget-gb", "1", "--model", "nosuch"), "--model nosuch: unknown preset"),
        (("--budget-gb", "1", "--tile", "100"), "--tile 100: expected a multiple of the blocks"),
        (("--budget-gb", "1", "--trace", "nosuch.jsonl"), "nosuch.jsonl: cannot be read"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments, message, trace, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(trace, *arguments)
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert (stopped.value.code, shown.out) == (2, "")
    assert line.startswith("error: ")
    assert message in line


def measured_run(path, times, experiment="ablate_interval", lengths=(640, 1280, 6400)):
    config = {"preset": "tiny", "dtype": "float32", "tile": 64}
    with RunFolder.open(path, experiment, config, {"python": "3"}) as folder:
        rows = [
            {"total": total, "restored": 0, "time_to_first_token_s": times(total)}
            for total in lengths
        ]
        folder.write_cell({"mode": "off"}, rows, len(rows))
    return path


def test_times_are_fitted_to_a_run(tmp_path):
    costs = preset_costs("tiny", "float32", "--model")
    run_path = measured_run(tmp_path / "a", lambda n: 0.5 + 2e-9 * prefill_flops(costs, 0, n))
    timing = measured_timing(run_path)
    assert np.allclose((timing.overhead_s, timing.seconds_per_flop), (0.5, 2e-9))
    through_zero = measured_run(tmp_path / "b", lambda n: 1e-15 * prefill_flops(costs, 0, n) ** 2)
    assert measured_timing(through_zero).overhead_s == 0
    for name, arguments, message in (
        ("c", {"experiment": "bench_kernels"}, "has no such times"),
        ("d", {"lengths": (640, 640)}, "expected requests of different lengths"),
    ):
        path = measured_run(tmp_path / name, lambda n: 1.0, **arguments)
        with pytest.raises(UserError, match=message):
            measured_timing(path)
    falling = measured_run(tmp_path / "e", lambda n: 1 / n)
    with pytest.raises(UserError, match="took no longer"):
        measured_timing(falling)
