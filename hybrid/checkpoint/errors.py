"""The one error that importing a checkpoint raises."""


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be loaded as it is: the message names the file, option or
    tensor at fault and what was expected."""
