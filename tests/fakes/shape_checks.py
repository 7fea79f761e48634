"""beartype with the numeric tower, so that an int is accepted as a float, as in every other type checker."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
