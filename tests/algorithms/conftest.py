"""The shapes declared on the formulas are checked at every call while the tests run."""

from pathlib import Path

from jaxtyping import install_import_hook

import tests.fakes.shape_checks  # noqa: F401 - jaxtyping looks it up by name but does not import it

FORMULAS = Path(__file__).parents[2] / "stages" / "algorithms"
WITH_SHAPES = [path.stem for path in FORMULAS.glob("*.py") if "from jaxtyping" in path.read_text()]

install_import_hook([f"stages.algorithms.{module}" for module in WITH_SHAPES], "tests.fakes.shape_checks.checked")
