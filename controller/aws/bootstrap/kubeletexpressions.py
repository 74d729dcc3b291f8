"""Kubelet settings that depend on the instance type, in CEL, the Common Expression Language.

With the feature gate `NodeClassCEL`, `spec.kubelet.maxPods` and the quantities of `kubeReserved`
and `systemReserved` may be expressions. Each instance type has its own value. The scheduler uses
the same value that the kubelet is configured with. Quantities are rounded up, so that instance
types share launch templates.

Source: Karpenter's design "Dynamic Kubelet Configuration via Expressions".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from controller.apis.kubernetes.quantities import parse
from controller.constraints.cel import CelError, first_line

RESERVATIONS = ("kubeReserved", "systemReserved")

MOST_PODS = 2**31 - 1

_UNITS = {"cpu": ("m", 10), "memory": ("Mi", 16), "ephemeral-storage": ("Gi", 1), "pid": ("", 1)}
"""The unit of a number without one, and the step to which it is rounded up, by resource."""


class Variables(NamedTuple):
    """The variables of an expression.

    `max_pods` is the kubelet's maxPods on the instance type. In an expression for maxPods itself,
    it is the value that the AMI family has by default.
    """

    instance_type: str
    vcpus: int
    memory_mib: int
    default_enis: int
    ips_per_eni: int
    max_pods: int


def expressions(kubelet: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path (such as `kubeReserved.cpu`) and text of each setting with an expression."""
    if isinstance(kubelet.get("maxPods"), str):
        yield "maxPods", kubelet["maxPods"]
    for name in RESERVATIONS:
        amounts = kubelet.get(name)
        for resource, amount in amounts.items() if isinstance(amounts, Mapping) else ():
            if isinstance(amount, str) and not is_quantity(amount):
                yield f"{name}.{resource}", amount


def is_quantity(text: Any) -> bool:
    """Whether an amount is a Kubernetes quantity; negative quantities included."""
    try:
        parse(text)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def malformed_expression(kubelet: Mapping[str, Any]) -> str:
    """Return the first malformed expression with its error; empty if all can be compiled."""
    for path, text in expressions(kubelet):
        try:
            _program(text)
        except CelError as exc:
            return f"spec.kubelet.{path}: {text!r}: {exc}"
    return ""


def resolve_expressions(
    kubelet: Mapping[str, Any], variables: Callable[[Mapping[str, Any]], Variables]
) -> Mapping[str, Any]:
    """Return the settings with each expression replaced by its value for one instance type.

    `variables` returns the variables of the instance type for the settings that it is given.

    Raises:
        CelError: an expression has no value that is valid for the kubelet.

    """
    paths = dict(expressions(kubelet))
    if not paths:
        return kubelet
    settings = dict(kubelet)
    if "maxPods" in paths:
        plain = {name: value for name, value in kubelet.items() if name != "maxPods"}
        settings["maxPods"] = _valid_value("maxPods", paths["maxPods"], variables(plain), MOST_PODS)
    known = variables(settings)
    for name in RESERVATIONS:
        if settings.get(name):
            settings[name] = {
                resource: _amount(f"{name}.{resource}", resource, paths, known, amount)
                for resource, amount in settings[name].items()
            }
    return settings


def _amount(
    path: str, resource: str, paths: Mapping[str, str], known: Variables, amount: Any
) -> Any:
    if path not in paths:
        return amount
    unit, step = _UNITS.get(resource, ("", 1))
    value = _valid_value(path, paths[path], known, 2**63 - step)
    return f"{-(-value // step) * step}{unit}"


def _valid_value(path: str, text: str, variables: Variables, most: int) -> int:
    value = _evaluate(text, variables)
    if isinstance(value, str) or not 0 <= value <= most:
        wrong = value if isinstance(value, str) else f"is {value}; allowed are 0 to {most}"
        raise CelError(f"spec.kubelet.{path}: {text!r} for {variables.instance_type}: {wrong}")
    return value


@lru_cache(maxsize=65536)
def _evaluate(text: str, variables: Variables) -> int | str:
    """Return the value of an expression, or the text of its error."""
    try:
        value = _program(text).eval(data=variables._asdict())
    except (RuntimeError, ValueError, LookupError) as exc:
        return first_line(str(exc))
    if value.type().name() == "ERROR":
        return first_line(value.value())
    number = value.value()
    return int(number) if math.isfinite(number) else "is not a finite number"


@lru_cache(maxsize=1024)
def _program(text: str) -> Any:
    """Compile an expression.

    Raises:
        CelError: it is malformed, or its type is not a number.

    """
    try:
        program = _environment().compile(text)
    except (RuntimeError, ValueError, LookupError) as exc:
        raise CelError(first_line(str(exc))) from exc
    kind = program.return_type().name()
    if kind not in ("INT", "DOUBLE"):
        raise CelError(f"is of type {kind.lower()}; allowed are int and double")
    return program


@lru_cache(maxsize=1)
def _environment() -> Any:
    # Imported here: few EC2NodeClasses have expressions, and no other module uses the library.
    from cel_expr_python import cel

    of_text = {"instance_type"}
    return cel.NewEnv(
        variables={
            name: cel.Type.STRING if name in of_text else cel.Type.INT for name in Variables._fields
        },
        functions=[
            cel.FunctionDecl(
                function.__name__,
                [
                    cel.Overload(
                        signature=f"{function.__name__}({one}, {other})",
                        return_type=cel.Type.INT if one == other == "int" else cel.Type.DOUBLE,
                        impl=_of_ints(function) if one == other == "int" else _of_any(function),
                    )
                    for one in ("int", "double")
                    for other in ("int", "double")
                ],
            )
            for function in (min, max)
        ],
    )


def _of_ints(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda one, other: function(one, other)


def _of_any(function: Callable[[float, float], float]) -> Callable[[float, float], float]:
    return lambda one, other: float(function(one, other))
