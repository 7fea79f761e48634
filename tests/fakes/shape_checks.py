"""beartype with the numeric tower, so that an int passes for a float as it does for every other type checker."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
