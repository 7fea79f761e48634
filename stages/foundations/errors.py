"""The one exception that is shown to the user as a sentence instead of a traceback."""


class UserError(Exception):
    """A mistake or condition the user can mend: the message names the value and the remedy (exit code 2)."""
