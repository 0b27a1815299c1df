import csv
import subprocess
import sys

import numpy as np
import pytest

from experiments import plots
from experiments.ablate_report import SUMS, draw, summarise
from experiments.errors import UserError, as_user_error, run_main
from experiments.options import Options
from experiments.tables import megabytes, print_table, seconds, write_csv

PNG = b"\x89PNG"


def row(mode="planned", interval=4, repeat=0, request=0, **change):
    values = dict.fromkeys(SUMS, 0)
    return {
        "mode": mode,
        "grid": "tile",
        "cache_mb": None,
        "interval": interval,
        "repeat": repeat,
        "request": request,
        "reason": "cold",
        "time_to_first_token_s": 0.5 + 0.1 * repeat,
        **values,
        "total": 100,
        "recomputed": 100,
        **change,
    }


ROWS = [row("off", 0), row("off", 0, request=1)] + [
    row(mode, interval, repeat, request, recomputed=60, restored=40, snapshot_bytes=10**6)
    for mode in ("planned", "in_pass")
    for interval in (0, 4)
    for repeat in (0, 1, 2)
    for request in (0, 1)
]


def test_a_summary_has_sums_over_requests_and_medians_over_repeats():
    summary = summarise(ROWS)
    assert [(line["mode"], line["interval"]) for line in summary] == [
        ("off", 0),
        ("planned", 0),
        ("planned", 4),
        ("in_pass", 0),
        ("in_pass", 4),
    ]
    assert summary[1]["recomputed"] == 120
    assert summary[1]["restored_share"] == pytest.approx(0.4)
    assert summary[1]["mean_time_to_first_token_s"] == pytest.approx(0.6)
    assert summary[1]["mean_time_to_first_token_low_s"] == pytest.approx(0.5)
    assert summary[1]["mean_time_to_first_token_high_s"] == pytest.approx(0.7)
    with pytest.raises(ValueError, match="differ in their counts"):
        summarise([*ROWS, row("planned", 0, repeat=3, recomputed=7)])


def test_the_plot_is_a_picture_and_depends_on_the_rows_alone(tmp_path):
    pictures = []
    for name, rows in (("a", ROWS), ("b", ROWS), ("c", ROWS[:-1])):
        draw(rows, tmp_path / f"{name}.png")
        pictures.append((tmp_path / f"{name}.png").read_bytes())
    assert pictures[0].startswith(PNG)
    assert pictures[0] == pictures[1] != pictures[2]


def test_series_stay_apart_in_colour_marker_and_line():
    looks = [plots.style(index) for index in range(len(plots.PALETTE))]
    for name in ("color", "marker", "linestyle"):
        assert len({str(look[name]) for look in looks}) == len(looks)


@pytest.mark.parametrize("columns", ["80", "60"])
def test_a_table_fits_the_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", columns)
    print_table("Title", ["mode", "tokens"], [["planned", 1234], [None, None], ["[red]", 5]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert lines[2].split() == ["planned", "1234"]
    assert lines[3].split() == ["-", "-"]
    assert lines[4].split() == ["[red]", "5"]


def test_csv_has_every_name_that_occurs(tmp_path):
    write_csv(tmp_path / "s.csv", [{"a": 1, "b": None}, {"a": 2, "c": "x, y"}])
    with (tmp_path / "s.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"a": "1", "b": "", "c": ""},
            {"a": "2", "b": "", "c": "x, y"},
        ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.000123, "0.123 ms"),
        (0.0999, "99.9 ms"),
        (0.5, "500 ms"),
        (1.0, "1.00 s"),
        (123.4, "123 s"),
    ],
)
def test_times_have_three_digits(value, shown):
    assert seconds(value) == shown


def test_megabytes():
    assert [megabytes(x) for x in (None, 0, 9_990_000, 10_000_000)] == [
        None,
        "0.00",
        "9.99",
        "10.0",
    ]


def test_a_band_is_drawn_from_quartile_to_quartile():
    _figure, (ax,) = plots.new_figure()
    plots.plot_spread(ax, {0: [1.0, 2.0, 9.0], 1: [5.0]}, "series", plots.style(0))
    assert np.array_equal(ax.lines[0].get_ydata(), [2.0, 5.0])
    low, high = ax.collections[0].get_paths()[0].get_extents().intervaly
    assert (low, high) == (1.5, 5.5)


def test_a_users_mistake_is_one_line_and_exit_code_2(capsys):
    def fails():
        with as_user_error("--preset huge"):
            raise ValueError("unknown\n preset")

    with pytest.raises(SystemExit) as caught:
        run_main(fails)
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: --preset huge: unknown preset\n"


def test_an_interrupt_and_a_bug_are_not_mistakes(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        run_main(interrupted)
    assert caught.value.code == 130
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: print(1 // 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 40}, "--tile 40: expected a multiple of the block size 16"),
        ({"block_size": 0}, "--block-size 0: expected at least 1"),
        ({"tile": 0}, "--tile 0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UserError, match=message):
        Options(**options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--intervals -1", "--intervals -1: expected at least 0"),
        ("--intervals 4 4", "--intervals 4 4: expected each value once"),
        ("--cache-mb 0", "--cache-mb 0.0: expected more than 0"),
        ("--trace absent.jsonl", "absent.jsonl: cannot be read (No such file or directory)"),
        ("--repeats 0", "--repeats 0: expected at least 1"),
        ("--sessions 0", "--sessions 0: expected at least 1"),
    ],
)
def test_the_sweep_refuses_wrong_options_before_it_makes_anything(
    monkeypatch, tmp_path, capsys, arguments, message
):
    from experiments import ablate_interval

    monkeypatch.setattr(
        sys, "argv", ["ablate_interval", "--out", str(tmp_path / "run"), *arguments.split()]
    )
    with pytest.raises(SystemExit) as caught:
        run_main(ablate_interval.main)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not (tmp_path / "run").exists()


def test_help_is_shown_without_starting_jax():
    script = (
        "import sys; from experiments.ablate_interval import main\n"
        "sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code == 0\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--cache-mb" in done.stdout
