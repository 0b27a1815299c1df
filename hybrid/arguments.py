"""Checks of what a request is given: errors name the argument, what it is and what was expected."""

from collections.abc import Collection, Sequence

import numpy as np

from planner.checks import check_int

MAX_TEMPERATURE = 1e30
"""Beyond it fp32 noise times the temperature may overflow, and every draw would be the same."""


def checked_prompt(
    prompt_tokens: Sequence[int] | np.ndarray, max_new_tokens: int, vocab_size: int, capacity: int
) -> np.ndarray:
    """The prompt as int32 [total].

    Raises:
        ValueError: no integers of one axis within the vocabulary, a count of new tokens that is no
            integer of at least 1, or both together above the capacity.
    """
    try:
        prompt = np.asarray(prompt_tokens)
    except (ValueError, TypeError) as error:
        raise ValueError(f"prompt_tokens is no array of integers: {error}") from error
    if prompt.ndim != 1 or prompt.size == 0:
        raise ValueError(
            f"prompt_tokens has shape {prompt.shape}; expected one axis and at least one token"
        )
    if prompt.dtype.kind not in "iu":
        raise ValueError(f"prompt_tokens has dtype {prompt.dtype}; expected integers")
    if prompt.min() < 0 or prompt.max() >= vocab_size:
        raise ValueError(
            f"prompt_tokens holds ids {prompt.min()}..{prompt.max()}; expected 0..{vocab_size - 1}"
        )
    new = check_int("max_new_tokens", max_new_tokens, 1)
    if len(prompt) + new > capacity:
        raise ValueError(
            f"{len(prompt)} prompt tokens and {new} new ones make {len(prompt) + new}; "
            f"the runner's capacity is {capacity}"
        )
    return prompt.astype(np.int32)


def check_draws(temperature: float, seed: int) -> None:
    """Refuse a temperature or a seed that draws cannot be made with.

    Raises:
        ValueError: a temperature that is no number in 0..MAX_TEMPERATURE, or a seed that is no
            integer in 0..2**32 - 1.
    """
    if isinstance(temperature, bool) or not isinstance(
        temperature, int | float | np.integer | np.floating
    ):
        raise ValueError(f"temperature is {temperature!r}; expected a number")
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise ValueError(
            f"temperature is {temperature}; expected a finite number of at least 0 and at most "
            f"{MAX_TEMPERATURE:g}"
        )
    check_int("seed", seed, 0, 2**32 - 1)


def checked_stop_tokens(stop_tokens: Collection[int], vocab_size: int) -> tuple[int, ...]:
    """The ids that end a continuation; an iterator is read once, here.

    Raises:
        ValueError: no ids within the vocabulary.
    """
    try:
        given = tuple(stop_tokens)
    except TypeError as error:
        raise ValueError(f"stop_tokens is {stop_tokens!r}; expected several ids") from error
    return tuple(check_int("a stop token", token, 0, vocab_size - 1) for token in given)
