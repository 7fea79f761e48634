"""JSON schemas of tools: read from the source of a user's function, shown to the policy, and checked for each call.

The source is parsed and never run here, since stages read it outside of any sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.params import FunctionTool, MarkedCalls, ToolsEnvironment, custom_file

_TEXT_TOOLS = {
    "calculator": ("expression", "Computes one operation of two whole numbers, such as 28*36."),
    "python": ("code", "Runs a Python program and returns what it prints."),
}
_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "list": "array", "dict": "object"}
_PYTHON_TYPES = {"integer": int, "number": int | float, "string": str, "boolean": bool, "array": list, "object": dict}
Schema = dict[str, Any]


def tool_schemas(params: ToolsEnvironment) -> dict[str, Schema]:
    """Returns the schema of each tool by its name, as chat templates take it: {"name", "description", "parameters"}.

    UserError where a function lacks a type hint or a docstring, or has a type without a schema. For marked calls also
    for several tools, and for one that does not take a single text.
    """
    schemas = {}
    for name, tool in params.tools.items():
        if isinstance(tool, FunctionTool):
            description, properties, required = _of_function(tool)
        else:
            parameter, description = _TEXT_TOOLS[tool.kind]
            properties, required = {parameter: {"type": "string"}}, [parameter]
        parameters = {"type": "object", "properties": properties, "required": required}
        schemas[name] = {"name": name, "description": description, "parameters": parameters}
    if isinstance(params.calls, MarkedCalls):
        _check_marked(params.calls, schemas)
    return schemas


def _check_marked(calls: MarkedCalls, schemas: Mapping[str, Schema]) -> None:
    place = "prompt.environment.calls"
    if calls.call.startswith(calls.answer) or calls.answer.startswith(calls.call):
        raise UserError(f"{place}: {calls.call!r} and {calls.answer!r} begin alike: choose other marks")
    if len(schemas) > 1:
        raise UserError(f"{place}: marked calls have one tool, and there are {', '.join(schemas)}: set kind: tagged")
    for name, schema in schemas.items():
        if [one.get("type") for one in schema["parameters"]["properties"].values()] != ["string"]:
            raise UserError(f"{place}: marked calls give one text, and {name} wants something else: set kind: tagged")


def argument_fault(schema: Schema, arguments: Mapping[str, Any]) -> str:
    """Returns what is wrong with the arguments of a call; empty if they fit."""
    properties, required = schema["parameters"]["properties"], schema["parameters"]["required"]
    if unknown := [name for name in arguments if name not in properties]:
        return f"{schema['name']} takes no {', '.join(unknown)}, only {', '.join(properties) or 'no arguments'}"
    if missing := [name for name in required if name not in arguments]:
        return f"{schema['name']} needs {', '.join(missing)}"
    wrong = [name for name, value in arguments.items() if not _fits(properties[name], value)]
    return f"{wrong[0]} must be {properties[wrong[0]].get('type', properties[wrong[0]].get('enum'))}" if wrong else ""


def _fits(schema: Schema, value: Any) -> bool:
    if value is None and schema.get("nullable"):
        return True
    if "enum" in schema:
        # True == 1 in Python.
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    kind = schema["type"]
    if not isinstance(value, _PYTHON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    return "items" not in schema or all(_fits(schema["items"], one) for one in value)


def _of_function(tool: FunctionTool) -> tuple[str, dict[str, Schema], list[str]]:
    """Returns description, parameters by name, and the names of those without a default."""
    place = f"{tool.name} in {tool.file}"
    try:
        tree = ast.parse(custom_file(tool.file).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{tool.file} cannot be read as Python ({error}): correct it") from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if tool.name not in functions:
        raise UserError(f"{tool.file} has no function {tool.name}: it has {', '.join(functions) or 'none'}")
    found = functions[tool.name].args
    if found.vararg or found.kwarg or found.posonlyargs or found.kwonlyargs:
        raise UserError(f"{place} has *, ** or /: use plain parameters, because a policy gives them by name")
    description = ast.get_docstring(functions[tool.name])
    if not description:
        raise UserError(f"{place} has no docstring: write one, because it describes the tool to the policy")
    if untyped := [one.arg for one in found.args if one.annotation is None]:
        raise UserError(f"{place} gives {untyped[0]} no type: write for instance `{untyped[0]}: int`")
    properties = {one.arg: _of_type(one.annotation, f"{one.arg} of {place}") for one in found.args if one.annotation}
    return description, properties, list(properties)[: len(found.args) - len(found.defaults)]


def _of_type(annotation: ast.expr, place: str) -> Schema:
    match annotation:
        case ast.Name(id=name) if name in _TYPES:
            return {"type": _TYPES[name]}
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return {"type": "array", "items": _of_type(item, place)}
        case ast.Subscript(value=ast.Name(id="dict")):
            return {"type": "object"}
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return {"enum": [one.value for one in ast.walk(values) if isinstance(one, ast.Constant)]}
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return {**_of_type(left, place), "nullable": True}
    raise UserError(
        f"{place} has type {ast.unparse(annotation)}, which has no schema: use int, float, str, bool, list, dict, "
        "list[int], Literal['a', 'b'] or `int | None`"
    )
