"""Kubelet settings that follow the machine, in CEL, the Common Expression Language.

Where the gate `NodeClassCEL` is open, `spec.kubelet.maxPods` and the amounts of `kubeReserved`
and `systemReserved` may be expressions. Each machine has its own answer, and what is planned
with is what its kubelet is told: amounts are rounded up, so that machines share templates.
Source: Karpenter's design "Dynamic Kubelet Configuration via Expressions".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from controller.apis.quantities import parse
from controller.constraints.cel import CelError, reason

RESERVATIONS = ("kubeReserved", "systemReserved")

MOST_PODS = 2**31 - 1

_UNITS = {"cpu": ("m", 10), "memory": ("Mi", 16), "ephemeral-storage": ("Gi", 1), "pid": ("", 1)}
"""What a plain number stands for, and to multiples of what it is rounded up."""


class Variables(NamedTuple):
    """What expressions can ask of a machine; `max_pods` is that of the class or of the family."""

    instance_type: str
    vcpus: int
    memory_mib: int
    default_enis: int
    ips_per_eni: int
    max_pods: int


def expressions(kubelet: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the settings that are expressions: where each stands, such as `kubeReserved.cpu`."""
    if isinstance(kubelet.get("maxPods"), str):
        yield "maxPods", kubelet["maxPods"]
    for name in RESERVATIONS:
        amounts = kubelet.get(name)
        for resource, amount in amounts.items() if isinstance(amounts, Mapping) else ():
            if isinstance(amount, str) and not is_quantity(amount):
                yield f"{name}.{resource}", amount


def is_quantity(text: Any) -> bool:
    """Whether an amount is written as Kubernetes writes it; of whatever sign."""
    try:
        parse(text)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def misread(kubelet: Mapping[str, Any]) -> str:
    """Say which expression is malformed, and why; empty when all can be read."""
    for place, text in expressions(kubelet):
        try:
            _program(text)
        except CelError as exc:
            return f"spec.kubelet.{place}: {text!r}: {exc}"
    return ""


def resolved(
    kubelet: Mapping[str, Any], variables: Callable[[Mapping[str, Any]], Variables]
) -> Mapping[str, Any]:
    """Return the settings with each expression in place of its answer for one machine.

    `variables` tells of the machine what settings without expressions make of it.

    Raises:
        CelError: an expression comes to nothing that a kubelet could be told.

    """
    places = dict(expressions(kubelet))
    if not places:
        return kubelet
    settings = dict(kubelet)
    if "maxPods" in places:
        plain = {name: value for name, value in kubelet.items() if name != "maxPods"}
        settings["maxPods"] = _answer("maxPods", places["maxPods"], variables(plain), MOST_PODS)
    known = variables(settings)
    for name in RESERVATIONS:
        if settings.get(name):
            settings[name] = {
                resource: _amount(f"{name}.{resource}", resource, places, known, amount)
                for resource, amount in settings[name].items()
            }
    return settings


def _amount(
    place: str, resource: str, places: Mapping[str, str], known: Variables, amount: Any
) -> Any:
    if place not in places:
        return amount
    unit, step = _UNITS.get(resource, ("", 1))
    answer = _answer(place, places[place], known, 2**63 - step)
    return f"{-(-answer // step) * step}{unit}"


def _answer(place: str, text: str, variables: Variables, most: int) -> int:
    answer = _evaluated(text, variables)
    if isinstance(answer, str) or not 0 <= answer <= most:
        wrong = answer if isinstance(answer, str) else f"comes to {answer}, not to 0 to {most}"
        raise CelError(f"spec.kubelet.{place}: {text!r} for {variables.instance_type}: {wrong}")
    return answer


@lru_cache(maxsize=65536)
def _evaluated(text: str, variables: Variables) -> int | str:
    """Return what an expression comes to, or in words why to nothing."""
    try:
        answer = _program(text).eval(data=variables._asdict())
    except (RuntimeError, ValueError, LookupError) as exc:
        return reason(str(exc))
    if answer.type().name() == "ERROR":
        return reason(answer.value())
    number = answer.value()
    return int(number) if math.isfinite(number) else "comes to no finite number"


@lru_cache(maxsize=1024)
def _program(text: str) -> Any:
    """Read an expression.

    Raises:
        CelError: it is malformed, or comes to something else than a number.

    """
    try:
        program = _environment().compile(text)
    except (RuntimeError, ValueError, LookupError) as exc:
        raise CelError(reason(str(exc))) from exc
    kind = program.return_type().name()
    if kind not in ("INT", "DOUBLE"):
        raise CelError(f"comes to {kind.lower()}, not to int or double")
    return program


@lru_cache(maxsize=1)
def _environment() -> Any:
    # Imported here: hardly any class has an expression, and nobody else needs the library.
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
