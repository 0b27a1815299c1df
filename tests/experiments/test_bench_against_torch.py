"""The comparison with PyTorch: what it refuses, and what it makes of its rows."""

import importlib.util
import json

import pytest

from experiments.bench_against_torch import BenchAgainstTorch, headline, summarise, torch_model
from experiments.errors import UserError
from experiments.run_table import HEADLINES

ROWS = [
    {
        "shape": shape,
        "tokens": 1024,
        "dtype": "float32",
        "our_s": 1.0 + round_ / 10,
        "torch_s": factor * (1.0 + round_ / 10),
        "our_flops_per_s": 60e9,
        "gemm_flops_per_s": 100e9 + round_,
    }
    for shape, factor in (("bamba", 2.0), ("qwen3.5", 1.5))
    for round_ in range(3)
]


def test_a_row_a_cell_with_ratios_pair_by_pair():
    bamba, qwen = summarise(ROWS)
    assert (bamba["shape"], bamba["times_as_fast"]) == ("bamba", pytest.approx(2.0))
    assert qwen["times_as_fast_high"] == pytest.approx(1.5)
    assert bamba["our_s"] == pytest.approx(1.1)
    assert bamba["share_of_gemm"] == pytest.approx(0.6)


def test_the_headline_is_one_line_and_known_to_the_run_table():
    line = headline(json.loads(json.dumps(ROWS)))
    assert "\n" not in line
    assert "bamba 1024 float32: 2.00 times as fast as PyTorch" in line
    assert HEADLINES["bench_against_torch"] is headline


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"shapes": ("llama",)}, "--shapes llama: expected among bamba, qwen3.5"),
        ({"dtypes": ("float16",)}, "--dtypes float16: expected among float32, bfloat16"),
        ({"rounds": 0}, "--rounds 0: expected at least 1"),
        ({"tokens": ()}, "--tokens: expected at least one value"),
    ],
)
def test_a_wrong_option_is_one_line(options, match):
    with pytest.raises(UserError, match=match):
        BenchAgainstTorch(**options)


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here"
)
def test_without_torch_it_says_what_to_install():
    with pytest.raises(
        UserError, match=r"torch is not installed: pip install 'waypoint\[parity\]'"
    ):
        torch_model("bamba", "float32", 0)
