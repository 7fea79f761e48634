"""The shapes declared on the formulas are checked at every call while the tests run."""

from pathlib import Path

from jaxtyping import install_import_hook

import tests.fakes.shape_checks  # noqa: F401 - jaxtyping looks it up by name but does not import it

PROJECT = Path(__file__).parents[2]
FORMULAS = [*PROJECT.glob("stages/algorithms/*.py"), *PROJECT.glob("stages/images/algorithms/*.py")]
WITH_SHAPES = [path for path in FORMULAS if "from jaxtyping" in path.read_text()]

install_import_hook(
    [".".join(path.relative_to(PROJECT).with_suffix("").parts) for path in WITH_SHAPES],
    "tests.fakes.shape_checks.checked",
)
