"""What can be wrong with a checkpoint folder is an error that names it."""

import json
import re
import shutil
import tracemalloc
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

import hybrid
from hybrid.checkpoint import CheckpointError, read_config, read_end_tokens
from hybrid.checkpoint.load import TensorFiles
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import columns, stacked
from hybrid.config import AttentionSpec, Compute

GOLDENS = Path(__file__).parents[1] / "parity" / "goldens"
SINGLE, SHARDED = "lfm2", "mamba2"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    """A copy of a golden's folder, to break."""

    def copy(name=SINGLE):
        return Path(shutil.copytree(GOLDENS / name, tmp_path / name))

    return copy


def edit_tensors(path, change):
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def edit_json(file, **changes):
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def refused(path, match):
    with pytest.raises(CheckpointError, match=match):
        hybrid.load_pretrained(path)


def test_a_missing_tensor_is_named(folder):
    path = folder()
    edit_tensors(path, lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"))
    refused(path, r"tensor model\.layers\.1\.self_attn\.k_proj\.weight is missing; qkv\.kernel")


def test_a_tensor_without_a_place_is_named(folder):
    path = folder()
    edit_tensors(path, lambda t: t.update({"model.layers.0.extra": np.zeros(3, np.float32)}))
    refused(path, r"1 tensors have no place in the model: model\.layers\.0\.extra")


def test_a_tied_head_may_be_stored_again(folder):
    path = folder()
    edit_tensors(path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    hybrid.load_pretrained(path)


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("model.layers.1.self_attn.v_proj.weight", lambda x: x[:-1]),
        ("model.layers.1.self_attn.q_proj.weight", lambda x: x[:, :-1]),
        ("model.layers.0.conv.conv.weight", lambda x: x[..., :2]),
        ("model.embedding_norm.weight", lambda x: x[:1]),
    ],
)
def test_a_wrong_shape_is_named(folder, name, cut):
    path = folder()
    edit_tensors(path, lambda t: t.update({name: np.ascontiguousarray(cut(t[name]))}))
    refused(path, name.replace(".", r"\.") + r" \[.*do not fit")


def test_an_integer_tensor_is_named(folder):
    path, name = folder(), "model.embedding_norm.weight"
    edit_tensors(path, lambda t: t.update({name: t[name].astype(np.int32)}))
    refused(path, r"embedding_norm\.weight has dtype I32; expected one of F32, F16, BF16")


@pytest.mark.parametrize("keep", [4, 100, -1])
def test_a_truncated_file_is_named(folder, keep):
    file = folder() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(file.parent, r"model\.safetensors: \d+ bytes.*truncated")


def test_a_file_that_is_no_safetensors_file_is_named(folder):
    file = folder() / "model.safetensors"
    file.write_bytes(b"\x10" + b"\0" * 7 + b"not a header....")
    refused(file.parent, r"model\.safetensors: the header is not JSON")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([], "the header is a list, not an object"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "tensor a: expected dtype, shape and data_offsets"),
        ({"a": 3}, "tensor a: expected dtype, shape and data_offsets, got 3"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, "tensor a: impossible"),
        ({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, "tensor a: expected"),
    ],
)
def test_a_malformed_header_is_named(folder, header, message):
    file, text = folder() / "model.safetensors", json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    refused(file.parent, rf"model\.safetensors: {message}")


@pytest.mark.parametrize("index", ['{"weight_map": ["a"]}', "{}", '{"weight_map": {"a": 1}}'])
def test_a_malformed_index_is_named(folder, index):
    path = folder()
    (path / "model.safetensors.index.json").write_text(index)
    refused(path, r"index\.json: expected weight_map")


@pytest.mark.parametrize("value", [0, "many", [], {"a": 1}, -3])
@pytest.mark.parametrize("option", ["num_attention_heads", "hidden_size", "vocab_size"])
def test_a_malformed_option_names_the_file(folder, option, value):
    path = folder()
    edit_json(path / "config.json", **{option: value})
    refused(path, r"config\.json: ")


def test_a_file_in_place_of_the_folder_is_named(folder):
    refused(folder() / "config.json", r"config\.json/config\.json: cannot be read: Not a directory")


def test_missing_files_are_named(folder, tmp_path):
    path = folder()
    (path / "model.safetensors").unlink()
    refused(path, r"holds neither model\.safetensors nor model\.safetensors\.index\.json")
    (path / "config.json").write_text("[]")
    refused(path, r"config\.json: holds a list; expected an object")
    (path / "config.json").write_text("{")
    refused(path, r"config\.json: not JSON")
    refused(tmp_path / "nowhere", r"nowhere/config\.json: no such file")


def test_shards_are_checked_against_their_index(folder):
    path = folder(SHARDED)
    index = json.loads((path / INDEX).read_text())["weight_map"]
    name, shard = next(iter(index.items()))
    edit_json(path / INDEX, weight_map={**index, "model.ghost": shard})
    refused(path, r"tensor model\.ghost is absent though")
    edit_json(path / INDEX, weight_map=index)
    (path / shard).rename(path / "moved")
    refused(path, rf"{shard}: no such shard")
    shutil.copy(path / "moved", path / shard)
    shutil.copy(path / "moved", path / "again.safetensors")
    edit_json(path / INDEX, weight_map={**index, name: "again.safetensors"})
    refused(path, r"tensor .* is in again\.safetensors and in")


def test_an_unknown_family_is_named(folder):
    path = folder()
    for named in ("llama", ["bamba"], 3):
        edit_json(path / "config.json", model_type=named)
        shown = re.escape(repr(named))
        refused(path, rf"config\.json: model_type {shown} is not a known family; expected one of b")


@pytest.mark.parametrize(
    ("family", "options", "match"),
    [
        ("bamba", {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported; expected 'silu'"),
        ("bamba", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type = 'yarn'"),
        ("bamba", {"mamba_d_state": None}, "option mamba_d_state is missing"),
        ("bamba", {"mamba_d_head": 5}, "mamba_d_head = 5 is not supported"),
        ("falcon_h1", {"projectors_bias": True}, "projectors_bias = True"),
        ("lfm2", {"layer_types": ["conv", "mamba"]}, "layer_types = 'linear_attention'"),
        ("lfm2", {"num_hidden_layers": 3}, "num_hidden_layers is 3 but layer_types lists 2"),
        ("mamba2", {"head_dim": 8}, "head_dim = 8 is not supported"),
        ("nemotron_h", {"n_group": 2}, "n_group = 2 is not supported; expected 1"),
        ("nemotron_h", {"moe_latent_size": 8}, "moe_latent_size = 8"),
        ("nemotron_h", {"sliding_window": 8}, "sliding_window = 8"),
        ("qwen3_next", {"attention_bias": True}, "attention_bias = True"),
        ("recurrent_gemma", {"block_types": ["recurrent", "conv"]}, "block_types = 'conv'"),
        ("zamba2", {"use_long_context": True}, "use_long_context = True"),
    ],
)
def test_an_unsupported_option_is_named(folder, family, options, match):
    path = folder(family)
    edit_json(path / "config.json", **options)
    with pytest.raises(CheckpointError, match=match):
        read_config(path)


@pytest.mark.parametrize(
    ("family", "older", "dropped"),
    [
        ("bamba", {"rope_theta": 10000.0}, ("rope_parameters", "layer_types")),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M-*E", "rms_norm_eps": 1e-5},
            ("layers_block_type", "layer_norm_epsilon"),
        ),
        ("nemotron_h", {"attention_head_dim": 8}, ("head_dim",)),
        ("granite_moe", {"layer_types": ["mamba", "attention"]}, ()),
        ("zamba2", {"ffn_hidden_size": 48}, ("intermediate_size",)),
        ("qwen3_5", {"partial_rotary_factor": 0.25, "rope_theta": 10000.0}, ("rope_parameters",)),
        ("qwen3_next", {"full_attention_interval": 2}, ("layer_types",)),
        ("recurrent_gemma", {"_block_types": ["recurrent", "attention"]}, ("block_types",)),
        (
            "lfm2",
            {"full_attn_idxs": [1], "block_ff_dim": 48, "tie_embedding": True},
            ("layer_types", "intermediate_size", "tie_word_embeddings"),
        ),
    ],
)
def test_older_option_names_read_alike(folder, family, older, dropped):
    path = folder(family)
    expected = read_config(path)
    edit_json(path / "config.json", **older, **dict.fromkeys(dropped))
    assert read_config(path) == expected


def test_options_of_the_text_model_are_found_inside():
    nested = Options({"model_type": "outer", "text_config": {"hidden_size": 8}}, Path("x"))
    assert nested.nested("text_config").find("hidden_size") == 8


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        ({"eos_token_id": 2}, None, (2,)),
        ({"eos_token_id": None}, None, ()),
        ({"eos_token_id": 2}, {"eos_token_id": [7, 5, 7]}, (5, 7)),
        ({"eos_token_id": 2}, {"eos_token_id": None}, (2,)),
        ({"eos_token_id": None, "text_config": {"eos_token_id": 9}}, None, (9,)),
        ({"eos_token_id": [64, 63, -1]}, None, (63,)),
    ],
)
def test_tokens_that_end_a_text(folder, config, generation, ids):
    path = folder()
    edit_json(path / "config.json", **config)
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    assert read_end_tokens(path) == ids


@pytest.mark.parametrize("named", ["</s>", [2, "</s>"], [True], 2.5])
def test_wrong_end_tokens_are_named(folder, named):
    path = folder()
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    match = r"generation_config\.json: option eos_token_id = .*; expected an integer or a list"
    with pytest.raises(CheckpointError, match=match):
        read_end_tokens(path)


def test_older_tensor_names_read_alike(folder):
    path = folder("nemotron_h")
    expected = nnx.state(hybrid.load_pretrained(path))

    def rename(tensors):
        for name in [n for n in tensors if n.startswith("backbone.")]:
            tensors["model." + name.removeprefix("backbone.")] = tensors.pop(name)

    edit_tensors(path, rename)
    found = nnx.state(hybrid.load_pretrained(path))
    for (key, a), (_, b) in zip(nnx.to_flat_state(expected), nnx.to_flat_state(found), strict=True):
        np.testing.assert_array_equal(a[...], b[...], err_msg=str(key))


def test_parameters_take_the_dtype_asked_for(folder):
    model = hybrid.load_pretrained(folder("qwen3_5"), Compute(dtype="bfloat16"))
    assert model.embedding.weight[...].dtype == ml_dtypes.bfloat16
    delta = model.branches[0].parts[0]
    assert delta.in_proj.kernel[...].dtype == ml_dtypes.bfloat16
    assert delta.A_log[...].dtype == np.float32
    master = hybrid.load_pretrained(
        folder("lfm2"), Compute(dtype="bfloat16", param_dtype="float32")
    )
    assert master.embedding.weight[...].dtype == np.float32


def test_tensors_are_views_of_the_mapped_file():
    files = TensorFiles(GOLDENS / SHARDED)
    tracemalloc.start()
    try:
        views = [files[name] for name in files]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(view.nbytes for view in views) > 2 * peak
    assert not any(view.flags.owndata or view.flags.writeable for view in views)


def test_loading_holds_one_more_copy_of_the_largest_parameter(tmp_path):
    hidden, heads, state, vocab, layers = 256, 8, 64, 12_000, 4
    inner, conv = 2 * hidden, 2 * hidden + 2 * state
    options = {
        "model_type": "mamba2",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_heads": heads,
        "head_dim": inner // heads,
        "state_size": state,
        "n_groups": 1,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(options))
    layer = {
        "norm.weight": (hidden,),
        "mixer.in_proj.weight": (inner + conv + heads, hidden),
        "mixer.conv1d.weight": (conv, 1, 4),
        "mixer.conv1d.bias": (conv,),
        "mixer.A_log": (heads,),
        "mixer.D": (heads,),
        "mixer.dt_bias": (heads,),
        "mixer.norm.weight": (inner,),
        "mixer.out_proj.weight": (hidden, inner),
    }
    shapes = {f"backbone.layers.{i}.{n}": s for i in range(layers) for n, s in layer.items()}
    shapes |= {"backbone.embeddings.weight": (vocab, hidden), "backbone.norm_f.weight": (hidden,)}
    tensors = {name: np.ones(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    del tensors
    hybrid.load_pretrained(GOLDENS / SHARDED)  # what is traced once and kept is not counted
    tracemalloc.start()
    try:
        model = hybrid.load_pretrained(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model))]
    assert max(sizes) == vocab * hidden * 4
    # On a CPU the host buffers become the parameters, so they count once.
    assert peak < sum(sizes) + 1.1 * max(sizes)


def test_layouts_place_each_source_once():
    spec = AttentionSpec(2, 1, 4)
    a, b = np.arange(6.0).reshape(2, 3), np.arange(6.0, 15.0).reshape(3, 3)
    out = np.full((3, 5), np.nan)
    for into, piece in columns(spec, out, [a, b]):
        into[...] = piece
    np.testing.assert_array_equal(out, np.concatenate([a.T, b.T], axis=1))
    out = np.full((2, 3, 4), np.nan)
    kinds = [np.full((2, 3), float(value)) for value in range(4)]
    for into, piece in stacked(spec, out, kinds):
        into[...] = piece
    np.testing.assert_array_equal(out[0, 0], [0, 0, 2, 2])
    np.testing.assert_array_equal(out[1, 0], [1, 1, 3, 3])
