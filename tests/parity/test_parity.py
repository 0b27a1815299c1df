"""Our models against what the transformers library computed from the same files.

A golden folder holds config.json, model.safetensors and golden.npz: tokens, logits, the recurrent
and convolution states after some offsets in transformers' layout, and `resume_err`, transformers'
own noise when it resumes from a copied cache. `goldens/` is committed (make_goldens.py writes it);
the folders of a shared data directory are read where there is one.
"""

import functools
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from hybrid import Engine, load_pretrained
from hybrid.config import Compute
from hybrid.runner import ModelRunner
from hybrid.runner_config import RunnerConfig
from hybrid.state import KVState
from planner.schedule import Chunk, Schedule

HERE = Path(__file__).parent
COMMITTED = HERE / "goldens"
SHARED = Path(os.environ.get("WAYPOINT_SHARED", HERE.parents[2] / "shared")) / "parity"
SHARED_NAMES = (
    "mamba2",
    "bamba",
    "falcon_h1",
    "granite_dense",
    "granite_moe",
    "nemotron_h",
    "zamba2",
    "lfm2",
    "qwen3_next",
    "qwen3_5",
    "olmo_hybrid",
    "recurrent_gemma",
)
LOGITS, STATES, TILE = 2e-5, 1e-5, 16

COMMITTED_FOLDERS = sorted(COMMITTED.glob("*"))
FOLDERS = [
    *(pytest.param(path, id=path.name) for path in COMMITTED_FOLDERS),
    *(
        pytest.param(SHARED / name, id=f"shared-{name}", marks=pytest.mark.slow)
        for name in SHARED_NAMES
    ),
]
UNUSUAL_STATES = ("lfm2", "zamba2")  # no scan state; two uses of one attention
per_folder = pytest.mark.parametrize("folder", FOLDERS)


class Golden:
    """A golden folder with our model, its runner and what one cold pass gave."""

    def __init__(self, folder: Path, implementation: str = "auto") -> None:
        if not (folder / "golden.npz").exists():
            pytest.skip(f"{folder} is absent; set WAYPOINT_SHARED to the shared data directory")
        self.folder = folder
        self.data = dict(np.load(folder / "golden.npz"))
        self.tokens, self.offsets = self.data["tokens"], [int(o) for o in self.data["offsets"]]
        self.total = len(self.tokens)
        self.model = load_pretrained(
            folder, Compute(kv_tile=TILE, chunk=16, implementation=implementation)
        )
        shapes = RunnerConfig(
            capacity=self.total,
            tile=TILE,
            block_size=TILE,
            grid="block",
            kept_rows=-(-self.total // TILE) * TILE,
        )
        self.runner = ModelRunner(
            self.model.config, self.model.compute, shapes, params=nnx.state(self.model)
        )
        self.head = jax.jit(lambda params, x: nnx.merge(self.runner.graphdef, params).head(x))
        # Unoptimised code compiles in half the time and computes the same function.
        self.forward = jax.jit(
            lambda params, tokens: nnx.merge(self.runner.graphdef, params)(tokens),
            compiler_options={"xla_backend_optimization_level": 0},
        )
        self.cold = self.prefill(0, None, None)
        self.kv = self.cold["kv"]

    @property
    def logits_tolerance(self) -> float:
        return max(LOGITS, 3 * float(self.data["resume_err"].max(initial=0.0)))

    def prefill(self, start, snapshot, kv):
        """Run the prompt from `start` in one pass that captures every later offset."""
        workspace = self.runner.new_workspace()
        if kv is not None:
            workspace = self.runner.load_rows(workspace, kv)
        later = tuple(o for o in self.offsets if o > start)
        chunk = Chunk(start, self.total, ((start, self.total),), later)
        result = self.runner.prefill(
            self.runner.device_tokens(self.tokens),
            Schedule(self.total, start, (chunk,)),
            workspace,
            restored=start,
            snapshot=snapshot,
        )
        return {
            "last": np.asarray(result.logits[0]),
            "logits": np.asarray(self.head(self.runner.params, result.workspace.hidden))[
                0, : self.total
            ],
            "snapshots": jax.tree.map(np.asarray, result.snapshots),
            "kv": self.runner.read_rows(result.workspace, 0, self.total),
        }

    def resume(self, start):
        rows = jax.tree.map(lambda x: x[:, :, :start], self.kv)
        return self.prefill(start, self.cold["snapshots"][start], rows)

    def check_states(self, snapshots) -> None:
        """Compare with the golden's states; every tensor that it holds is looked at."""
        layers = [
            index
            for index, layer in enumerate(self.model.config.layers)
            for part in _parts(layer)
            if _is_recurrent(part)
        ]
        for offset, states in snapshots.items():
            seen = set()
            for layer, state in zip(layers, states, strict=True):
                for name, value in _in_their_layout(state).items():
                    key = f"l{layer}.{name}@{offset}"
                    if key not in self.data:
                        continue
                    seen.add(key)
                    theirs = self.data[key]
                    theirs = theirs[:, -value.shape[1] :] if name == "conv" else theirs
                    error = np.abs(value - theirs).max() / np.abs(theirs).max()
                    assert error <= STATES, f"{key}: relative difference {error:.2e}"
            assert seen == {key for key in self.data if key.endswith(f"@{offset}")}


def _parts(layer):
    return [part for branch in layer for part in branch.parts]


def _is_recurrent(part):
    from hybrid.state import part_state_shape

    state = part_state_shape(part, Compute(), 1, 1, 1)
    return state is not None and not isinstance(state, KVState)


def _in_their_layout(state):
    values = {"conv": np.asarray(state.conv)[0].T}
    if hasattr(state, "scan"):
        values["rec"] = np.asarray(state.scan)[0]
    return values


@functools.cache
def golden(folder: Path) -> Golden:
    return Golden(folder)


def worst(found, expected) -> float:
    return float(np.abs(found - expected).max())


@per_folder
def test_static_forward_gives_their_logits(folder):
    g = golden(folder)
    logits = g.forward(g.runner.params, g.tokens[None])
    assert worst(np.asarray(logits[0]), g.data["logits"]) <= g.logits_tolerance


@per_folder
def test_prefill_loop_gives_their_logits_and_states_in_one_pass(folder):
    g = golden(folder)
    assert worst(g.cold["logits"], g.data["logits"]) <= g.logits_tolerance
    assert worst(g.cold["last"], g.data["logits"][-1]) <= g.logits_tolerance
    assert sorted(g.cold["snapshots"]) == g.offsets
    g.check_states(g.cold["snapshots"])


@per_folder
def test_resume_gives_their_logits_and_states(folder):
    g = golden(folder)
    for offset in g.offsets:
        warm = g.resume(offset)
        rows = slice(offset, None)
        assert worst(warm["logits"][rows], g.data["logits"][rows]) <= g.logits_tolerance
        assert sorted(warm["snapshots"]) == [o for o in g.offsets if o > offset]
        g.check_states(warm["snapshots"])


@per_folder
def test_resume_is_bitwise_on_the_tile_grid_and_close_off_it(folder):
    g = golden(folder)
    on_grid = [o for o in g.offsets if o % TILE == 0]
    assert on_grid
    assert len(on_grid) < len(g.offsets)
    for offset in g.offsets:
        warm = g.resume(offset)
        if offset % TILE:
            assert worst(warm["logits"][offset:], g.cold["logits"][offset:]) <= LOGITS
            continue
        np.testing.assert_array_equal(warm["logits"][offset:], g.cold["logits"][offset:])
        for later, states in warm["snapshots"].items():
            for ours, cold in zip(
                jax.tree.leaves(states), jax.tree.leaves(g.cold["snapshots"][later]), strict=True
            ):
                np.testing.assert_array_equal(ours, cold)


@pytest.mark.parametrize("folder", [f for f in FOLDERS if "recurrent_gemma" in f.id])
def test_states_that_no_golden_holds_match_the_token_loop(folder):
    g, loop = golden(folder), Golden(folder, implementation="reference")
    for offset, states in g.cold["snapshots"].items():
        pairs = zip(
            jax.tree.leaves(states), jax.tree.leaves(loop.cold["snapshots"][offset]), strict=True
        )
        for ours, theirs in pairs:
            assert worst(ours, theirs) <= STATES * np.abs(theirs).max()


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(
            path, id=path.name, marks=() if path.name in UNUSUAL_STATES else pytest.mark.slow
        )
        for path in COMMITTED_FOLDERS
    ],
)
def test_engine_continues_as_the_model_does_cold_warm_and_from_disk(folder, tmp_path):
    g, new_tokens = golden(folder), 7
    prompt = g.tokens[: g.total - new_tokens]
    everywhere = {"mode": "in_pass", "interval": 1, "directory": tmp_path}
    with Engine(g.runner, **everywhere) as engine:
        cold = engine.generate(prompt, new_tokens)
        warm = engine.generate(prompt, new_tokens)
        engine.flush()
    with Engine(g.runner, **everywhere) as fresh:
        stored = fresh.generate(prompt, new_tokens)
    assert cold.report.restored == 0
    deepest = (len(prompt) - 1) // TILE * TILE
    assert warm.report.restored == stored.report.restored == deepest
    np.testing.assert_array_equal(warm.tokens, cold.tokens)
    np.testing.assert_array_equal(stored.tokens, cold.tokens)
    # Each token is the best one, or as good as the best, after those before it.
    whole = np.concatenate([prompt, cold.tokens])
    logits = np.asarray(g.forward(g.runner.params, whole[None]))[0, len(prompt) - 1 : -1]
    drawn = logits[np.arange(new_tokens), cold.tokens]
    assert (logits.max(axis=1) - drawn).max() <= LOGITS
