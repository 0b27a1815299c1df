"""The kernel benchmark end to end, tiny, and its arithmetic."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import bench_kernels, bench_kernels_report, run_table
from experiments.errors import UserError, run_main
from experiments.kernel_cases import CASES
from experiments.run_folder import read_rows


@pytest.mark.usefixtures("quick_compiles")
@pytest.mark.parametrize("name", ["mamba2-2.7b", "qwen3-next", "recurrentgemma-2b"])
def test_baselines_compute_the_same_recurrence(name) -> None:
    case = CASES[name].shrunk()
    inputs = case.inputs(24, "float32")
    scan = jax.jit(case.scan, static_argnums=1)
    y, final, captured = scan(inputs, "reference", jnp.array([[9]], jnp.int32))
    states = jax.jit(case.associative)(inputs)
    if case.op == "linear":
        np.testing.assert_allclose(states, y, rtol=1e-5, atol=1e-5)
        return
    np.testing.assert_allclose(states[-1], final[0, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states[8], captured[0, 0, 0], rtol=1e-4, atol=1e-5)
    pieces = case.pieces(inputs, (9, 24))
    first = scan(pieces[0], "xla")
    second = scan(pieces[1], "xla", None, first.final_state)
    np.testing.assert_allclose(first.final_state, captured[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(second.final_state, final, rtol=1e-4, atol=1e-5)


def test_offsets_lie_off_the_chunk_grid() -> None:
    for captures in (1, 4, 16):
        offsets = bench_kernels.offsets_of(4096, captures)
        assert len(set(offsets)) == captures
        assert all(0 < offset < 4096 and offset % 2 for offset in offsets)


@pytest.mark.slow
def test_a_quick_run_leaves_a_whole_run_folder(tmp_path, monkeypatch) -> None:
    out = tmp_path / "run"
    arguments = ["--quick", "--out", str(out), "--implementations", "xla"]
    arguments += ["--shapes", "qwen3-next", "recurrentgemma-2b"]
    monkeypatch.setattr(sys, "argv", ["bench_kernels", *arguments])
    run_main(bench_kernels.main)
    assert {path.name for path in out.iterdir()} >= {
        "config.json",
        "metrics.jsonl",
        "summary.csv",
        "pairs.csv",
        "kernels.png",
    }
    rows = read_rows(out)
    lines = bench_kernels_report.run_summary(rows)
    assert {line["implementation"] for line in lines} == {"xla", "reference", "associative"}
    assert all(line["run_s"] > 0 and line["compile_s"] > 0 for line in lines)
    assert {pair["what"] for pair in bench_kernels_report.pair_summary(rows)} == {
        "captures",
        "split",
    }
    assert "captures at 4 offsets" in run_table.row(out)


def test_wrong_options_are_said_in_words() -> None:
    with pytest.raises(UserError, match="at least four a capture"):
        bench_kernels.BenchKernels(tokens=32, captures=(16,))
    with pytest.raises(UserError, match="--shapes gpt: expected one of mamba2"):
        bench_kernels.case_of(bench_kernels.BenchKernels(), "gpt")
