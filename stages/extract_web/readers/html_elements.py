"""Which HTML elements make blocks of text, and which hold none of the page's."""

from __future__ import annotations

from stages.extract_web.readers.mathml import names

HEADINGS = {f"h{level}": level for level in range(1, 7)}

DROPPED = names(
    "script style nav footer aside noscript iframe svg select textarea input head template object "
    "embed canvas audio video map dialog"
)
BLOCKS = (
    names(
        "address article blockquote body button form caption center dd details div dl dt fieldset figcaption "
        "figure header hgroup hr html legend li main menu ol p pre section summary table tbody td tfoot th "
        "thead tr ul"
    )
    | HEADINGS.keys()
)
