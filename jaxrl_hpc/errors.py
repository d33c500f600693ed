"""Errors that are the user's to fix: shown as one sentence, exit code 2, no traceback."""


class UserError(Exception):
    """A mistake in a config, a command or a file, with a message that names it and the fix."""
