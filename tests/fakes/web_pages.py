"""Pages as inputs of extract_web, the candidates of one page, and the command line of the stage."""

import yaml

from stages.extract_web.extraction import extract_page

SECTION = {
    "max_answer_characters": 40,
    "shared_instructions": "prepended",
    "min_confidence": 0.0,
    "page_timeout_seconds": 60.0,
    "page_memory_mib": 1024,
    "engine": {"kind": "local", "processes": 2},
}
OUTPUTS = ("candidates", "dropped", "metrics", "headline")


def page(content, form="html", name="p"):
    return {"page_id": name, "url": "u", "format": form, "content": content, "licence": "MIT"}


def extracted(content, form="html"):
    """Returns the candidates of a page, or none with a reason."""
    found, reason, *_ = extract_page(page(content, form), 40)
    assert bool(found) != bool(reason)
    return found


def pairs(content, form="html"):
    return [(row["problem"], row["solution"]) for row in extracted(content, form)]


def stage_flags(folder, pages, name, **changes):
    """Returns the flags that run the stage; each output is `<folder>/<name>.<output>`."""
    params = folder / f"{name}.yaml"
    params.write_text(yaml.safe_dump({"extract_web": SECTION | changes}))
    outputs = (f"--{output}={folder / f'{name}.{output}'}" for output in OUTPUTS)
    return ["extract_web", f"--params={params}", f"--pages={pages}", *outputs]
