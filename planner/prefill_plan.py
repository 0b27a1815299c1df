"""The four rules that say where prefill chunks end and which of their ends are worth a snapshot.

All positions count the tokens before them, so position p lies between token p - 1 and token p::

    total = 49, block_size = 16

    position  0               16              32              48  49
              |---- block 0 ---|--- block 1 ---|--- block 2 ---|--|
                                               ^               ^  ^
                          tail split point = 32|               |  total
                                   last block boundary under it = 48

A later request that is byte-identical matches at most 48 tokens (the last token is always computed,
for its logits), and a request that shares all but its last few tokens matches 32 or 48. So the two
*prompt-tail ends* are 48 and 32, and the second of them is the *tail split point*. When total is
itself a boundary, "strictly under" moves everything one block down::

    total = 48, block_size = 16

    position  0               16              32              48
              |---- block 0 ---|--- block 1 ---|--- block 2 ---|
                               ^               ^               ^
          tail split point = 16|               |last = 32      total
"""

from planner.checks import check_int


def last_boundary(total: int, block_size: int) -> int:
    """Position of the last block boundary strictly under `total`; 0 for an empty prompt.

    Args:
        total: prompt length, tokens.
        block_size: tokens a block.

    Returns:
        A multiple of `block_size`, at most `total - 1`.

    Raises:
        ValueError: a negative total, a block size under 1, or no integer.

    >>> [last_boundary(total, 16) for total in (0, 1, 16, 17, 48, 49)]
    [0, 0, 0, 16, 32, 48]
    """
    total = check_int("total", total, 0)
    block_size = check_int("block_size", block_size, 1)
    return (total - 1) // block_size * block_size if total else 0


def tail_split_point(total: int, block_size: int, min_tail_tokens: int = 0) -> int | None:
    """One block below the last block boundary strictly under `total`.

    Args:
        total: prompt length, tokens.
        block_size: tokens a block.
        min_tail_tokens: least number of tokens that the pass after the split must have; the split
            then moves down to the largest block boundary that leaves so many.

    Returns:
        The position, or None when it is not above token 0.

    Raises:
        ValueError: a negative total or minimum, a block size under 1, or no integer.

    >>> tail_split_point(32772, 16), tail_split_point(32768, 16), tail_split_point(33, 16)
    (32752, 32736, 16)
    >>> tail_split_point(48, 16), tail_split_point(49, 16)
    (16, 32)
    >>> tail_split_point(32, 16), tail_split_point(16, 16), tail_split_point(0, 16)
    (None, None, None)
    >>> [tail_split_point(total, 16, 256) for total in (32772, 271, 272)]
    [32512, None, 16]
    """
    min_tail_tokens = check_int("min_tail_tokens", min_tail_tokens, 0)
    split = last_boundary(total, block_size) - block_size
    split = min(split, (int(total) - min_tail_tokens) // block_size * block_size)
    return int(split) if split > 0 else None


def is_prompt_tail_end(end_token: int, total: int, block_size: int) -> bool:
    """Whether a position is the last block boundary strictly under `total`, or one block below it.

    Position 0 counts where it is one of the two; that nothing is saved there is the business of
    `is_checkpoint_chunk_end`.

    Args:
        end_token: the position.
        total: prompt length, tokens.
        block_size: tokens a block.

    Returns:
        The answer; False for an empty prompt.

    Raises:
        ValueError: a negative position or total, a block size under 1, or no integer.

    >>> [is_prompt_tail_end(end, 49, 16) for end in (48, 32, 16, 47, 49)]
    [True, True, False, False, False]
    >>> is_prompt_tail_end(0, 0, 16)
    False
    """
    end_token = check_int("end_token", end_token, 0)
    total = check_int("total", total, 0)
    last = last_boundary(total, block_size)
    return total != 0 and (end_token == last or end_token == last - block_size)


def is_checkpoint_chunk_end(end_token: int, total: int, block_size: int, interval: int) -> bool:
    """Whether a non-last chunk that ends at a position saves a snapshot there.

    It does at a prompt-tail end and at a block boundary whose block index is a multiple of
    `interval`. It never does at position 0, off the block grid, or at or past `total`, which no
    non-last chunk reaches.

    Args:
        end_token: position where the chunk ends.
        total: prompt length, tokens.
        block_size: tokens a block.
        interval: in blocks; 0 turns interval snapshots off and leaves the prompt-tail ends.

    Returns:
        The answer.

    Raises:
        ValueError: a negative argument, a block size under 1, or no integer.

    >>> [end for end in range(0, 200) if is_checkpoint_chunk_end(end, 199, 16, 4)]
    [64, 128, 176, 192]
    >>> [end for end in range(0, 200) if is_checkpoint_chunk_end(end, 199, 16, 0)]
    [176, 192]
    >>> is_checkpoint_chunk_end(64, 64, 16, 4), is_checkpoint_chunk_end(65, 199, 16, 4)
    (False, False)
    """
    end_token = check_int("end_token", end_token, 0)
    total = check_int("total", total, 0)
    block_size = check_int("block_size", block_size, 1)
    interval = check_int("interval", interval, 0)
    if end_token == 0 or end_token >= total or end_token % block_size:
        return False
    if is_prompt_tail_end(end_token, total, block_size):
        return True
    return interval > 0 and end_token // block_size % interval == 0


def plan_chunk_len(
    offset: int, total: int, proposed: int, block_size: int, split: int | None
) -> int:
    """Length of the chunk that starts at `offset`, given the proposal of the token budget::

        proposal   offset |------------------------------| offset + proposed < total
        blocks        |        |        |        |        |
        chunk      offset |----------------------| the last boundary inside the proposal ...
        with split offset |-------------| split      ... or the split, where it would be spanned

    Args:
        offset: position where the chunk starts.
        total: prompt length, tokens.
        proposed: tokens that the budget allows, capped at what is left.
        block_size: tokens a block.
        split: position that no non-last chunk may span, or None.

    Returns:
        `proposed` where it reaches `total` (a last chunk), else the length up to the split or to
        the last block boundary inside the proposal, where there is one: 1 to `proposed`. 0 for an
        empty proposal.

    Raises:
        ValueError: a negative argument, `offset` past `total`, a block size under 1, or no integer.

    >>> plan_chunk_len(0, 32772, 8193, 16, 32752), plan_chunk_len(24576, 32772, 8192, 16, 32752)
    (8192, 8176)
    >>> plan_chunk_len(32752, 32772, 20, 16, 32752)
    20
    >>> plan_chunk_len(17, 100, 10, 16, None), plan_chunk_len(17, 100, 0, 16, None)
    (10, 0)
    """
    total = check_int("total", total, 0)
    offset = check_int("offset", offset, 0)
    if offset > total:
        raise ValueError(f"offset must not lie past total = {total}, got {offset}")
    proposed = check_int("proposed", proposed, 0)
    block_size = check_int("block_size", block_size, 1)
    if split is not None:
        split = check_int("split", split, 0)
    end = offset + proposed
    if end >= total:
        return proposed
    if split is not None and offset < split < end:
        return split - offset
    boundary = end // block_size * block_size
    return boundary - offset if boundary > offset else proposed
