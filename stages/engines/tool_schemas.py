"""JSON schemas of tools: read from the source of a user's function, shown to the policy, and checked for each call.

The source is parsed and never run here, since stages read it outside of any sandbox.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.params import (
    CalculatorTool,
    FunctionTool,
    MarkedCalls,
    PythonTool,
    SearchTool,
    ToolsEnvironment,
    custom_file,
)

_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "list": "array", "dict": "object"}
_PYTHON_TYPES = {"integer": int, "number": int | float, "string": str, "boolean": bool, "array": list, "object": dict}
_KNOWN = "int, float, str, bool, list, dict, list[int], Literal['a', 'b'] and `int | None`"
Schema = dict[str, Any]


def tool_schemas(params: ToolsEnvironment) -> dict[str, Schema]:
    """Returns the schema of each tool by its name, as chat templates take it: {"name", "description", "parameters"}.

    UserError where a function lacks a type hint or a docstring, or has a type that has no schema. With marked calls
    UserError for several tools, and for one that does not take a single text.
    """
    schemas = {name: _schema(name, tool) for name, tool in params.tools.items()}
    if isinstance(params.calls, MarkedCalls):
        call, answer = params.calls.call, params.calls.answer
        if call.startswith(answer) or answer.startswith(call):
            raise UserError(f"prompt.environment.calls: {call!r} and {answer!r} begin alike: choose other marks")
        if len(schemas) > 1:
            raise UserError(
                f"prompt.environment.calls.kind: marked calls one tool, and there are {', '.join(schemas)}: keep one, "
                "or set kind: tagged"
            )
        for name, schema in schemas.items():
            if [one.get("type") for one in schema["parameters"]["properties"].values()] != ["string"]:
                raise UserError(
                    f"prompt.environment.calls.kind: marked gives a tool one text, and {name} takes something else: "
                    "give it a single parameter of type str, or set kind: tagged"
                )
    return schemas


def argument_fault(schema: Schema, arguments: Mapping[str, Any]) -> str:
    """Returns what is wrong with the arguments of a call; empty if they fit."""
    properties, required = schema["parameters"]["properties"], schema["parameters"]["required"]
    if unknown := [name for name in arguments if name not in properties]:
        return f"{schema['name']} takes no {', '.join(unknown)}, only {', '.join(properties) or 'no arguments'}"
    if missing := [name for name in required if name not in arguments]:
        return f"{schema['name']} needs {', '.join(missing)}"
    return next(
        (
            f"{name} must be {properties[name].get('type') or properties[name]['enum']}"
            for name, value in arguments.items()
            if not _fits(properties[name], value)
        ),
        "",
    )


def _fits(schema: Schema, value: Any) -> bool:
    if value is None and schema.get("nullable"):
        return True
    if "enum" in schema:
        # True == 1 in Python.
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    kind = schema["type"]
    if isinstance(value, bool) and kind != "boolean":
        return False
    if not isinstance(value, _PYTHON_TYPES[kind]):
        return False
    return kind != "array" or all(_fits(schema.get("items", schema), one) for one in value if "items" in schema)


def _schema(name: str, tool: CalculatorTool | PythonTool | SearchTool | FunctionTool) -> Schema:
    match tool:
        case CalculatorTool():
            return _of_text(name, "Computes one operation of two whole numbers: 28*36", "expression")
        case PythonTool():
            return _of_text(name, "Runs a Python program and returns what it prints.", "code")
        case SearchTool():
            return _of_text(name, "Returns the passages that match best.", "query")
        case FunctionTool():
            return _of_function(name, tool)


def _of_text(name: str, description: str, parameter: str) -> Schema:
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"name": name, "description": description, "parameters": parameters}


def _of_function(name: str, tool: FunctionTool) -> Schema:
    place = f"{tool.name} in {tool.file}"
    try:
        tree = ast.parse(custom_file(tool.file).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{tool.file} cannot be read as Python ({error}): correct it") from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if tool.name not in functions:
        raise UserError(f"{tool.file} has no function {tool.name}: it has {', '.join(functions) or 'none'}")
    function, arguments = functions[tool.name], functions[tool.name].args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise UserError(f"{place} takes *, ** or positional-only parameters, which a policy cannot name: remove them")
    description = ast.get_docstring(function)
    if not description:
        raise UserError(f"{place} has no docstring: write one, because it tells the policy what the tool does")
    named = [*arguments.args, *arguments.kwonlyargs]
    optional = {one.arg for one in arguments.args[len(arguments.args) - len(arguments.defaults) :]}
    optional |= {
        one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is not None
    }
    properties = {}
    for one in named:
        if one.annotation is None:
            raise UserError(f"{place} gives {one.arg} no type: write for instance `{one.arg}: int`")
        properties[one.arg] = _of_type(one.annotation, f"{one.arg} of {place}")
    required = [one.arg for one in named if one.arg not in optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": inspect.cleandoc(description), "parameters": parameters}


def _of_type(annotation: ast.expr, place: str) -> Schema:
    match annotation:
        case ast.Name(id=name) if name in _TYPES:
            return {"type": _TYPES[name]}
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return {"type": "array", "items": _of_type(item, place)}
        case ast.Subscript(value=ast.Name(id="dict")):
            return {"type": "object"}
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=values)) if all(
            isinstance(value, ast.Constant) for value in values
        ):
            return {"enum": [ast.literal_eval(value) for value in values]}
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return {**_of_type(left, place), "nullable": True}
    raise UserError(f"{place} has type {ast.unparse(annotation)}, which has no schema: use {_KNOWN}")
