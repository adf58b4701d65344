"""CEL as the API server runs it on objects: an evaluator, and the two places where rules stand."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

if sys.version_info < (3, 10):
    pytest.skip("the evaluator of CEL is installed from Python 3.10 on", allow_module_level=True)

import celpy
from celpy.adapter import json_to_cel

Json = Any


def evaluate(expression: str, variables: Mapping[str, Json]) -> Json:
    """What an expression comes to.

    :raises celpy.CELEvalError: it fails, as for a field that is not there.
    """
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return program.evaluate({name: json_to_cel(value) for name, value in variables.items()})


def messages_of(value: Json, schema: Mapping[str, Any]) -> Iterator[str]:
    """What the rules of a schema say to a value, and to everything in it."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if not bool(evaluate(rule["rule"], {"self": value})):
            yield rule["message"]
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from messages_of(value[name], inner)
    elif isinstance(value, list):
        for item in value:
            yield from messages_of(item, schema.get("items", {}))


def admits(policies: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> list[str]:
    """The messages with which ValidatingAdmissionPolicies refuse a request; [] = it is admitted.

    ``request``: an AdmissionRequest with object and oldObject (null where there is none).
    """
    return [message for policy in policies for message in _refusals(policy["spec"], request)]


def _refusals(spec: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[str]:
    if not any(_matches(rule, request) for rule in spec["matchConstraints"]["resourceRules"]):
        return
    known = {"request": request, "object": request.get("object"), "oldObject": request.get("oldObject")}
    if not all(bool(evaluate(c["expression"], known)) for c in spec.get("matchConditions", ())):
        return
    variables: dict[str, Json] = {}
    for variable in spec.get("variables", ()):
        variables[variable["name"]] = _plain(
            evaluate(variable["expression"], {**known, "variables": variables})
        )
    for validation in spec["validations"]:
        with_variables = {**known, "variables": variables}
        if bool(evaluate(validation["expression"], with_variables)):
            continue
        yield (
            str(evaluate(validation["messageExpression"], with_variables))
            if "messageExpression" in validation
            else validation["message"]
        )


def _plain(value: Json) -> Json:
    return bool(value) if isinstance(value, celpy.celtypes.BoolType) else str(value)


def _matches(rule: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    resource = request["resource"]["resource"]
    if request.get("subResource"):
        resource = f"{resource}/{request['subResource']}"
    return (
        request["resource"]["group"] in rule["apiGroups"]
        and request["operation"] in rule["operations"]
        and resource in rule["resources"]
    )
