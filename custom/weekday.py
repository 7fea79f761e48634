"""An example of a tool: the policy calls it by name, and reads its type hints and docstring as a JSON schema."""

import datetime


def weekday(year: int, month: int, day: int = 1) -> str:
    """Returns the day of the week of a date, such as Monday."""
    return datetime.date(year, month, day).strftime("%A")
