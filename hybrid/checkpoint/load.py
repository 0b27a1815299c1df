"""Read a checkpoint folder into a model, one parameter at a time."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from hybrid.checkpoint.errors import CheckpointError
from hybrid.checkpoint.families import BY_MODEL_TYPE
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import Rule
from hybrid.checkpoint.tensors import TensorFiles, load_json
from hybrid.config import Compute, HybridConfig, InjectionSpec
from hybrid.model import HybridModel

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
_ALIGNMENT_BYTES = 64
Key = tuple[str | int, ...]


def read_config(path: str | Path) -> HybridConfig:
    """The architecture of a checkpoint folder, without its weights.

    Args:
        path: folder that holds config.json.

    Raises:
        CheckpointError: an unknown family, or an option that no part implements.
    """
    family, options = _identify(Path(path))
    return _architecture(family, options)


def read_end_tokens(path: str | Path) -> tuple[int, ...]:
    """The tokens that end a text: as generation_config.json names them, or else config.json.

    Args:
        path: folder that holds config.json.

    Returns:
        Ids in rising order; those outside the vocabulary, which no model draws, are left out.

    Raises:
        CheckpointError: a file that is not JSON, or an `eos_token_id` that is neither an integer
            nor a list of them.
    """
    folder = Path(path)
    family, options = _identify(folder)
    vocab_size = _architecture(family, options).vocab_size
    sources = [options.nested("text_config")]
    if (folder / GENERATION_CONFIG).exists():
        path = folder / GENERATION_CONFIG
        sources.insert(0, Options(load_json(path), path))
    for source in sources:
        named = source.find("eos_token_id", default=None)
        if named is None:
            continue
        ids = named if isinstance(named, list | tuple) else [named]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise source.unsupported("eos_token_id", named, "an integer or a list of integers")
        return tuple(sorted({i for i in ids if 0 <= i < vocab_size}))
    return ()


def load_pretrained(path: str | Path, compute: Compute | None = None) -> HybridModel:
    """The model in a local folder as the transformers library saves it.

    Every parameter is assembled in one host buffer from views of the mapped shards and handed to
    the device, so at most one more copy of the largest parameter exists at any time.

    Args:
        path: folder with config.json and model.safetensors, or shards with their index.
        compute: dtypes, scan implementation, precision; None means fp32 everywhere. Files in bf16
            or fp16 are converted to `param_dtype`.

    Returns:
        The model: int32 tokens [batch, length] -> fp32 logits [batch, length, vocab].
        `nnx.state(model)` are the parameters for a `ModelRunner`.

    Raises:
        CheckpointError: an unknown family, an unsupported option, a file that is absent or
            truncated, a tensor that is missing, left over or of the wrong shape.
    """
    folder = Path(path)
    compute = compute or Compute()
    family, options = _identify(folder)
    config = _architecture(family, options)
    abstract = nnx.eval_shape(lambda: HybridModel(config, compute, nnx.Rngs(params=0)))
    graphdef, state = nnx.split(abstract)
    shapes = dict(nnx.to_flat_state(state))
    names = _Names(TensorFiles(folder), family, options.path.parent)
    filled: dict[Any, Any] = {}
    for rule, spec, owner, fields in _placed_rules(family, config):
        key = (*owner, *_parse(rule.target))
        if key in shapes:
            filled[key] = shapes[key].replace(_fill(rule, spec, shapes[key], names, fields))
    missing = ["/".join(map(str, key)) for key in shapes if key not in filled]
    if missing:
        raise CheckpointError(f"{folder}: no rule fills {', '.join(missing)}")
    names.check_all_used()
    return nnx.merge(graphdef, nnx.from_flat_state(filled))


def _identify(folder: Path) -> tuple[Family, Options]:
    path = folder / CONFIG
    values = load_json(path)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in BY_MODEL_TYPE:
        raise CheckpointError(
            f"{path}: model_type {kind!r} is not a known family; expected one of "
            f"{', '.join(sorted(BY_MODEL_TYPE))}"
        )
    return BY_MODEL_TYPE[kind], Options(values, path)


def _architecture(family: Family, options: Options) -> HybridConfig:
    """The family's configuration; what a wrong option breaks in it names the file."""
    try:
        return family.config(options)
    except CheckpointError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise CheckpointError(
            f"{options.path}: expected options of a {options.find('model_type')} model: {error}"
        ) from error


def _parse(target: str) -> Key:
    return tuple(int(part) if part.isdigit() else part for part in target.split("."))


def _placed_rules(
    family: Family, config: HybridConfig
) -> Iterator[tuple[Rule, Any, Key, dict[str, Any]]]:
    """All rules with the spec they read, the owner of their target and the fields of their
    names."""
    for rule in family.root:
        yield rule, config, (), {"prefix": ""}
    homes: dict[int, int] = {}
    uses = number = 0
    for index, layer in enumerate(config.layers):
        fields: dict[str, Any] = {"prefix": family.layer.format(layer=index)}
        for place, branch in enumerate(layer):
            owner: Key = ("branches", number)
            for rule in family.branches[place]:
                yield rule, branch, owner, fields
            if branch.injection is not None:
                block = branch.injection.block
                if homes.setdefault(block, index) == index:
                    for rule in family.shared:
                        spec = config.shared_blocks[block]
                        yield rule, spec, ("shared_blocks", block), fields
                home = family.layer.format(layer=homes[block])
                for rule in family.parts[InjectionSpec]:
                    yield (
                        rule,
                        branch.injection,
                        (*owner, "injection"),
                        {
                            **fields,
                            "home": home,
                            "use": uses,
                        },
                    )
                uses += 1
            for position, part in enumerate(branch.parts):
                experts = getattr(part, "num_experts", 0)
                for rule in family.parts[type(part)]:
                    yield rule, part, (*owner, "parts", position), {**fields, "experts": experts}
            number += 1


class _Names:
    """Their tensors by the names that rules use; remembers which were asked for."""

    def __init__(self, files: Mapping[str, np.ndarray], family: Family, folder: Path) -> None:
        self.files, self.family, self.folder = files, family, folder
        self.stored = {self._canonical(name): name for name in files}
        self.used: set[str] = set()

    def _canonical(self, name: str) -> str:
        for pattern, replacement in self.family.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def take(self, name: str, target: str) -> np.ndarray:
        if name not in self.stored:
            raise CheckpointError(f"{self.folder}: tensor {name} is missing; {target} needs it")
        self.used.add(name)
        return self.files[self.stored[name]]

    def check_all_used(self) -> None:
        left = [
            stored
            for name, stored in self.stored.items()
            if name not in self.used and not any(re.search(p, name) for p in self.family.ignored)
        ]
        if left:
            shown = ", ".join(sorted(left)[:8]) + (", ..." if len(left) > 8 else "")
            raise CheckpointError(
                f"{self.folder}: {len(left)} tensors have no place in the model: {shown}"
            )


def _source_names(rule: Rule, fields: dict[str, Any]) -> list[str]:
    names = []
    for source in rule.sources:
        whole = source if source.startswith("{") else fields["prefix"] + source
        experts = range(fields["experts"]) if "{expert}" in whole else (None,)
        names += [whole.format(**fields, expert=expert) for expert in experts]
    return names


def _fill(rule: Rule, spec: Any, leaf: Any, names: _Names, fields: dict[str, Any]) -> jax.Array:
    """Assemble one parameter on the host and put it on the device."""
    sources = _source_names(rule, fields)
    tensors = [names.take(name, rule.target) for name in sources]
    out = _host_buffer(leaf.shape, leaf.dtype)
    covered = 0
    try:
        for into, piece in rule.layout(spec, out, tensors):
            if into.shape != piece.shape:
                raise ValueError("shapes differ")
            into[...] = piece
            covered += piece.size
        if covered != out.size:
            raise ValueError("not filled")
    except (ValueError, IndexError) as error:
        shown = ", ".join(
            f"{name} {list(t.shape)}" for name, t in zip(sources[:6], tensors, strict=False)
        )
        raise CheckpointError(
            f"{names.folder}: {shown} do not fit {rule.target} {list(out.shape)}"
        ) from error
    return jax.device_put(out).block_until_ready()


def _host_buffer(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array at an address that jax's CPU backend takes over without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + _ALIGNMENT_BYTES, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[first : first + size].view(dtype).reshape(shape)
