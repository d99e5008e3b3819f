"""The description of the API, worked out from the table of routes and the structs in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from inspect import cleandoc
from typing import Any

import msgspec

from fairlead.api.http.input import JSON
from fairlead.api.http.problems import (
    BadRequest,
    BodyTooLarge,
    BrokerAway,
    Forbidden,
    Invalid,
    NotFound,
    Problem,
    ProblemBody,
    RequestTimeout,
    TooManyRequests,
    Unauthorized,
    UnsupportedMediaType,
)
from fairlead.api.http.route import SCOPES, Route
from fairlead.api.route_table import BASE, ROUTES

_PROBLEM = "application/problem+json"
# What is of another tenant is not found, on whatever route it is asked for.
_ALWAYS = (BadRequest, Unauthorized, Forbidden, NotFound, TooManyRequests, BrokerAway)
_WITH_BODY = (RequestTimeout, BodyTooLarge, UnsupportedMediaType, Invalid)
_TEMPLATE = "#/components/schemas/{name}"
_NAMES = re.compile(r"\{(\w+)\}")

_DESCRIPTION = """\
Submit, watch and manage tasks. Callers have a token in the header `Authorization: Bearer fl_...`;
each operation says which scope it takes. A token that belongs to a tenant sees and makes only what
is of that tenant. Moments are RFC 3339 in UTC, durations seconds. Errors are RFC 9457 problems with
stable types."""


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    return described(ROUTES)


def described(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of some routes."""
    routes = list(routes)
    bodies = [route.body for route in routes if route.body is not None]
    answers = [route.answer for route in routes if route.answer is not None]
    kinds = list({repr(kind): kind for kind in (*bodies, *answers, ProblemBody)}.values())
    found, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    _complete([found, components])
    for component in components.values():
        if "description" in component:  # a docstring, which Python indents up to 3.12
            component["description"] = cleandoc(component["description"])
    schemas = dict(zip(map(repr, kinds), found, strict=True))
    for kind in bodies:
        _tell_defaults(schemas[repr(kind)], components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(BASE + route.path, {})[route.method.lower()] = _operation(route, schemas)
    paths.update(_beside(schemas))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairlead", "version": "1", "description": _DESCRIPTION},
        "security": [{"token": []}],
        "tags": [{"name": tag} for tag in sorted({_tag(route) for route in routes})],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"A token of `fairlead token`; scopes: {', '.join(SCOPES)}.",
                }
            },
        },
    }


def _complete(schema: Any) -> None:
    """Say of arrays and objects what is in them, be it anything: generators of clients ask."""
    if isinstance(schema, dict):
        if schema.get("type") == "array" and "prefixItems" not in schema:
            schema.setdefault("items", {})
        if schema.get("type") == "object" and "properties" not in schema:
            schema.setdefault("additionalProperties", {})
        for each in schema.values():
            _complete(each)
    elif isinstance(schema, list | tuple):
        for each in schema:
            _complete(each)


def _tell_defaults(schema: dict[str, Any], components: dict[str, Any]) -> None:
    """Move the defaults of a body into words.

    Generators for TypeScript take a field with a default for one that is always there: right for
    answers, but in a body it may be left out.
    """
    schema = schema.get("items", schema)
    for each in components[schema["$ref"].rpartition("/")[2]]["properties"].values():
        default = each.pop("default", None)
        if isinstance(default, bool | int | float | str):
            words = (each.get("description", ""), f"Default: {json.dumps(default)}.")
            each["description"] = " ".join(filter(None, words))


def _operation(route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "tags": [_tag(route)],
        "summary": route.summary,
        "description": f"Takes the scope `{route.scope}`.",
        "x-scope": route.scope,
        "parameters": [*_in_path(route), *_in_query(route), *_in_header(route)],
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        content = {JSON: {"schema": schemas[repr(route.body)]}}
        content.update({kind: _LINES for kind in route.streams if kind != JSON})
        operation["requestBody"] = {"required": True, "content": content}
    return operation


_LINES: dict[str, Any] = {"schema": {"type": "string", "description": "One JSON object a line."}}


def _in_path(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _NAMES.findall(route.path)
    ]


def _in_query(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    (schema,), components = msgspec.json.schema_components([route.query], ref_template=_TEMPLATE)
    struct = components[schema["$ref"].rpartition("/")[2]]
    required = struct.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(each)}
        for name, each in struct["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is there or not: it is never null."""
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if rest.get("default", ...) is None:
        del rest["default"]
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        return {**rest, **choices[0]}
    return {**rest, "anyOf": choices} if choices else rest


def _in_header(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": text,
            "schema": {"type": "string"},
        }
        for name, text in route.headers.items()
    ]


def _responses(route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if route.answer is None:
        responses["204"] = {"description": "Done."}
    else:
        content = {JSON: {"schema": schemas[repr(route.answer)]}}
        content.update({kind: _LINES for kind in route.streams if kind != JSON})
        for status, text in {route.status: "Done.", **route.also}.items():
            responses[str(status)] = {"description": text, "content": content}
    problems: list[type[Problem]] = [*_ALWAYS, *route.problems]
    if route.body is not None:
        problems += _WITH_BODY
    problems.append(Invalid)
    by_status: dict[int, list[type[Problem]]] = {}
    for kind in problems:
        found = by_status.setdefault(kind.status, [])
        if kind not in found:
            found.append(kind)
    for status in sorted(by_status):
        responses[str(status)] = _problem(by_status[status], schemas)
    return dict(sorted(responses.items()))


def _problem(kinds: Iterable[type[Problem]], schemas: Mapping[str, Any]) -> dict[str, Any]:
    text = "; or ".join(f"{kind.title} (`/problems/{kind.slug}`)" for kind in kinds)
    return {
        "description": f"{text}.",
        "content": {_PROBLEM: {"schema": schemas[repr(ProblemBody)]}},
    }


def _beside(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """What every server answers beside the routes."""
    ok = {"200": {"description": "Yes.", "content": {JSON: {"schema": {"type": "object"}}}}}
    away = {"503": _problem([BrokerAway], schemas)}
    denied = {
        str(kind.status): _problem([kind], schemas)
        for kind in (BadRequest, Unauthorized, Forbidden, TooManyRequests, BrokerAway)
    }
    return {
        "/livez": {
            "get": _fixed("livez", "Whether the process answers.", ok, is_open=True),
        },
        "/readyz": {
            "get": _fixed("readyz", "Whether requests can be sent.", {**ok, **away}, is_open=True),
        },
        "/openapi.json": {"get": _fixed("openapi", "This document.", {**ok, **denied})},
    }


def _fixed(
    name: str, summary: str, responses: Mapping[str, Any], *, is_open: bool = False
) -> dict[str, Any]:
    operation = {"operationId": name, "summary": summary, "responses": dict(responses)}
    return {**operation, "security": []} if is_open else operation


def _tag(route: Route) -> str:
    return route.tags[0] if route.tags else route.path.strip("/").partition("/")[0]


def _operation_id(route: Route) -> str:
    words = re.findall(r"\w+", route.path.replace("-", "_"))
    return "_".join((route.method.lower(), *words))
