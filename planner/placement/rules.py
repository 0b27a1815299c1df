"""Placement rules of the published systems, each read off one prompt and what it matched."""

from dataclasses import dataclass, fields

from planner.checks import check_int
from planner.placement.context import PlacementContext, PlacementPolicy
from planner.prefill_plan import is_checkpoint_chunk_end, last_boundary, tail_split_point


class Rule(PlacementPolicy):
    """A policy that is a frozen dataclass of whole numbers, written name:first,second,...."""

    name = ""

    @property
    def spec(self) -> str:
        """The name and the arguments."""
        values = ",".join(str(getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return f"{self.name}:{values}" if values else self.name


@dataclass(frozen=True, repr=False)
class Nothing(Rule):
    """No snapshots: what a system without recurrent-state caching does."""

    name = "none"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """Nowhere."""
        return ()


@dataclass(frozen=True, repr=False)
class Every(Rule):
    """Every `interval` blocks, from position 0 on.

    Source: vLLM's `mamba_cache_mode = "all"` keeps a state at every block; coarser intervals are
    the interval knob of most systems. Here a position is captured in the pass wherever it lies;
    systems that only save where a chunk ends are `ChunkEnds`.

    Attributes:
        interval: in blocks; interval times the block size must be a multiple of the grid.
    """

    name = "every"
    interval: int

    def __post_init__(self) -> None:
        """Refuse an interval under one block."""
        check_int("interval", self.interval, 1)

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """Multiples of the interval."""
        step = self.interval * context.block_size
        if step % context.grid:
            raise ValueError(
                f"placement {self.spec!r} places snapshots every {step} tokens, "
                f"off the grid of {context.grid} tokens"
            )
        return tuple(range(context.restored // step * step + step, context.total + 1, step))


@dataclass(frozen=True, repr=False)
class ChunkEnds(Rule):
    """Where the scheduler's chunks end, filtered by an interval; prompt-tail ends always pass.

    Source: the chunk-end rule of `planner.prefill_plan`. An end off the grid is floored to it.

    Attributes:
        interval: in blocks; 0 leaves the prompt-tail ends.
    """

    name = "chunk_ends"
    interval: int

    def __post_init__(self) -> None:
        """Refuse a negative interval."""
        check_int("interval", self.interval, 0)

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """Ends that the rule keeps, floored to the grid."""
        return context.capturable(
            context.floor(end)
            for end in context.chunk_ends
            if is_checkpoint_chunk_end(end, context.total, context.block_size, self.interval)
        )


@dataclass(frozen=True, repr=False)
class Last(Rule):
    """The last block boundary strictly under the prompt's end.

    Source: the replay boundary that vLLM keeps at retention interval 0; SGLang's and Marconi's
    leaf. Those systems may also keep the state at the end of the answer; states of decode steps
    differ in bits from prefill's, so here the leaf ends with the prompt.
    """

    name = "last"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """One position, floored to the grid."""
        boundary = last_boundary(context.total, context.block_size)
        return context.capturable((context.floor(boundary),))


@dataclass(frozen=True, repr=False)
class Tail(Rule):
    """The last block boundary strictly under the prompt's end, and one block below it.

    Source: the prompt-tail ends of `planner.prefill_plan`, floored to the grid each, where they may
    merge.
    """

    name = "tail"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """One or two positions."""
        boundary = last_boundary(context.total, context.block_size)
        split = tail_split_point(context.total, context.block_size) or 0
        return context.capturable((context.floor(boundary), context.floor(split)))


@dataclass(frozen=True, repr=False)
class Fork(Rule):
    """The point where this prompt leaves a cached path that goes on: a branch on second sight.

    Source: Marconi (arXiv 2411.19379, section 4.1): a state is kept where inserting the prompt
    splits an edge of the radix tree, for two prompts then share that prefix. The paper works at
    token granularity; here the fork is floored to the grid, so it is captured while replaying up to
    it, and only where no snapshot at that position serves already.
    """

    name = "fork"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """The floored match, where it is a fork."""
        return context.capturable((context.floor(context.matched),) if context.branches else ())


@dataclass(frozen=True, repr=False)
class Match(Rule):
    """The end of the match, fork or not, wherever the nearest snapshot lies below it.

    Source: SGLang's `mamba_branching_seqlen` (the longest position, floored to the checkpoint grid,
    that would have been a hit if a state existed); vLLM's shared-prefix junction; Megatron-LM's
    KV divergence boundary. SGLang tracks one state an extend, so a branch inside a chunk replaces
    that chunk's end; here both can be captured.
    """

    name = "match"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """The floored match."""
        return context.capturable((context.floor(context.matched),))


@dataclass(frozen=True, repr=False)
class Retention(Rule):
    """Last replay boundary, shared-prefix junction, and every `interval_tokens` tokens.

    Source: vLLM's `prefix_cache_retention_interval`: 0 (its default) keeps the first two, a
    positive value adds periodic states. vLLM materialises states at block-aligned chunk ends and
    retains some; here the retained positions are captured directly.

    Attributes:
        interval_tokens: multiple of the grid, or 0.
    """

    name = "vllm"
    interval_tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse a negative interval."""
        check_int("interval_tokens", self.interval_tokens, 0)

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """Two semantic positions and the periodic ones."""
        step = self.interval_tokens
        if step % context.grid:
            raise ValueError(
                f"placement {self.spec!r} retains states every {step} tokens, "
                f"off the grid of {context.grid} tokens"
            )
        boundary = last_boundary(context.total, context.block_size)
        periodic = range(step, context.total + 1, step) if step else ()
        return context.capturable(
            (context.floor(boundary), context.floor(context.matched), *periodic)
        )


@dataclass(frozen=True, repr=False)
class Megatron(Rule):
    """KV divergence boundary, last aligned boundary, and the one a block before that.

    Source: Megatron-LM's dynamic inference context, which extracts up to these three intermediate
    states a request. Its offsets are per chunk of a chunked prefill; here they are per prompt, and
    floored to the grid.
    """

    name = "megatron"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """Up to three positions."""
        aligned = context.total // context.block_size * context.block_size
        wanted = (context.matched, aligned, max(aligned - context.block_size, 0))
        return context.capturable(context.floor(p) for p in wanted)


@dataclass(frozen=True, repr=False)
class Messages(Rule):
    """Message starts: the last `count` of them.

    Source: the message-span checkpoints of llama.cpp's server. Traces do not always tell roles; the
    last message of a prompt that waits for an answer is the user's or a tool's, so `messages:1`
    stands for llama.cpp's checkpoint before the last user message.

    Attributes:
        count: starts to keep, from the last one back.
    """

    name = "messages"
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse a count under one."""
        check_int("count", self.count, 1)

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """The starts, floored to the grid."""
        return context.capturable(context.floor(b) for b in context.boundaries[-self.count :])


@dataclass(frozen=True, repr=False)
class LlamaCpp(Rule):
    """Before the last user message, near the prompt's end, and otherwise a least step apart.

    Source: llama.cpp's server with its default options: a checkpoint before the last user message,
    one 4 tokens and one `ubatch + 4` tokens before the end, and one at any batch start more than
    `min_step_tokens` after the previous one. It checkpoints at whatever token a batch ends; here
    positions are floored to the grid, the step counts from where prefill resumes, and its cap of 32
    checkpoints a slot is the business of eviction.

    Attributes:
        min_step_tokens: least distance of periodic checkpoints.
        ubatch_tokens: tokens in a micro-batch.
    """

    name = "llama_cpp"
    min_step_tokens: int = 8192
    ubatch_tokens: int = 512

    def __post_init__(self) -> None:
        """Refuse a step or a batch under one token."""
        check_int("min_step_tokens", self.min_step_tokens, 1)
        check_int("ubatch_tokens", self.ubatch_tokens, 1)

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """Message start, two near the end, and the periodic ones."""
        step = max(context.floor(self.min_step_tokens), context.grid)
        near_end = (context.total - 4, context.total - 4 - self.ubatch_tokens)
        periodic = range(context.floor(context.restored) + step, context.total + 1, step)
        wanted = (*context.boundaries[-1:], *near_end)
        return context.capturable((*(context.floor(p) for p in wanted), *periodic))
