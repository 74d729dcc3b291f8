"""CEL as device selectors use it.

https://github.com/google/cel-spec/blob/master/doc/langdef.md
https://kubernetes.io/docs/reference/using-api/cel/
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from controller.apis.kubernetes.quantities import parse
from controller.constraints.cel import CelError, Quantity, Semver, expression


class Domains(dict[str, Any]):
    """A map of maps whose default is an empty one."""

    def __missing__(self, domain: str) -> dict[str, Any]:
        return {}


DEVICE = {
    "device": {
        "driver": "gpu.example.com",
        "attributes": {
            "gpu.example.com": {
                "model": "A100",
                "version": Semver(12, 4, 0),
                "versions": [Semver.read("1.0.0"), Semver.read("2.0.0")],
                "index": 3,
                "ecc": True,
            }
        },
        "capacity": {"gpu.example.com": {"memory": Quantity(parse("40Gi"))}},
    }
}
TRUE = """
device.driver == 'gpu.example.com'
device.attributes['gpu.example.com'].model.lowerAscii().startsWith("a")
device.attributes["gpu.example.com"].model in ["A100", 'H100']
device.attributes["gpu.example.com"].ecc
device.attributes["gpu.example.com"].version.isGreaterThan(semver("12.4.0-rc.1"))
device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) == 0
device.capacity["gpu.example.com"].memory.isLessThan(quantity('41G')) == false
has(device.attributes["gpu.example.com"].model) && !has(device.attributes["gpu.example.com"].uuid)
cel.bind(gpu, device.attributes["gpu.example.com"], gpu.index > 2 && gpu.index < 2 + 2)
device.attributes["gpu.example.com"].?uuid.orValue("none") == "none"
device.attributes["gpu.example.com"][?"model"].orValue("none") == "A100"
device.attributes["gpu.example.com"].?model.optMap(m, m + "!").value() == "A100!"
"model" in device.attributes["gpu.example.com"]
device.attributes["gpu.example.com"].exists(name, name == "ecc")
[1, 2, 3].all(n, n > 0) && [1, 2, 3].exists_one(n, n == 2)
[1, 2, 3].map(n, n > 1, n * 10) == [20, 30] && [1, 2, 3].filter(n, n % 2 == 1) == [1, 3]
{"a": 1, "b": [2]}.b[0] == 2
dyn(1) == 1.0 && device.attributes["gpu.example.com"].index < 3.5 && true != false
device.attributes["gpu.example.com"].version != "12.4.0"
-7 / 2 == -3 && -7 % 2 == -1 && 7.0 / 2.0 == 3.5
"abc".size() == 3 && size([1, 2]) == 2 && int("12") + 1 == 13
"a-b-c".split("-").join("+") == "a+b+c" && "abc".substring(1) == "bc"
"GPU-12".matches("^GPU-[0-9]+$")
r'\\d' == "\\\\d" && "\\x41\\u0042" == 'AB' && b'a' == b"a"
true ? 1 < 2 : 1 / 0 == 0
sets.contains([1, 2, 3], [2]) && [1, 2].includes(2) && !dyn([1]).includes(true)
device.attributes["gpu.example.com"].model.includes("A100")
device.attributes["gpu.example.com"].versions.includes(semver("2.0.0"))
[1, 2].isSorted() && [1, 2].sum() == 3 && [1, 2].min() == 1 && [1, 2].max() == 2
[1, 2].all(place, n, n == place + 1)
quantity("1Gi").add(quantity("1Gi")) == quantity("2Gi") && quantity("50k").asInteger() == 50000
quantity("1").sub(1).sign() == 0 && quantity("1.5").asApproximateFloat() == 1.5
quantity("1Ei").isGreaterThan(quantity("1E")) && !quantity("1m").isInteger()
quantity("1e9999999").sign() == 1
semver("v1.2", true) == semver("1.2.0") && semver("1.2.3").minor() == 2
isSemver("1.2.3") && !isSemver("1.2") && isQuantity("1Gi") && !isQuantity("much")
"""


@pytest.mark.parametrize("text", TRUE.strip().splitlines())
def test_a_true_expression_is_true(text: str) -> None:
    assert expression(text).is_true(DEVICE)


@pytest.mark.parametrize(
    "text",
    ["true || device.there", "device.there || true", "[0, 1].exists(n, 1 / n == 1)"],
)
def test_or_is_true_if_one_side_is_true_and_the_other_an_error(text: str) -> None:
    assert expression(text).is_true({})


@pytest.mark.parametrize(
    "text",
    ["false && device.there", "device.there && false", "[0, 1].all(n, 1 / n == 2)"],
)
def test_and_is_false_if_one_side_is_false_and_the_other_an_error(text: str) -> None:
    assert not expression(text).is_true({})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("device.attributes['gpu.example.com'].uuid == 'x'", 'Key not found in map : "uuid"'),
        ("device.attributes['gpu.example.com'].model", "string, not bool"),
        (
            "device.attributes['gpu.example.com'].model > 3",
            "No matching overloads found : _>_(string, int64)",
        ),
        ("gpu.model == 'x'", "1:4: undeclared reference to 'gpu.model'"),
        ("1 / 0 == 0", "divide by zero"),
        ("[1][1] == 1", "index=1 size=1"),
        ("quantity('1m').asInteger() == 0", "the quantity is not whole"),
        ("semver('1.2') == semver('1.2')", "'1.2' is not a semantic version"),
        ("quantity('1').isLessThan(semver('1.2.3'))", "'<' not supported between"),
        ("device.attributes['gpu.example.com'].version.startsWith('1')", "(bytes).startsWith"),
        ("quantity('much').sign() == 1", "'much' is not a quantity"),
        ("'a'.matches('(')", "missing ): ("),
        ("false || nothing", "undeclared reference to 'nothing'"),
        ("{[1]: 2} == {}", "Invalid map key type: 'list'"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        (
            "cel.bind(a, [1,2,3,4,5,6,7,8,9,10], " + "a.all(x, " * 5 + "true" + ")" * 6,
            "Iteration budget exceeded",
        ),
    ],
)
def test_evaluation_errors_name_the_cause(text: str, reason: str) -> None:
    with pytest.raises(CelError) as caught:
        expression(text).is_true(DEVICE)

    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("device.driver ==", "1:17: Syntax error: mismatched input '<EOF>'"),
        ("a b", "1:3: Syntax error: extraneous input 'b'"),
        ("'a", "1:1: Syntax error: token recognition error"),
        ("frobnicate(1)", "undeclared reference to 'frobnicate'"),
        ("has(device)", "has() argument must be a field selection"),
        ("(" * 5000, "Expression recursion limit exceeded. limit: 32"),
        ("a" * 20000, "longer than"),
    ],
)
def test_an_unparsable_expression_is_refused(text: str, reason: str) -> None:
    with pytest.raises(CelError) as caught:
        expression(text)

    assert reason in str(caught.value)


def test_a_missing_key_of_a_map_with_a_default_is_the_default() -> None:
    """As Kubernetes has it with domains: of one that a device knows nothing of, it is empty."""
    variables = {"device": {"attributes": Domains()}}

    answers = {
        text: expression(text).is_true(variables)
        for text in (
            "has(device.attributes['a'].x)",
            "device.attributes['a'].?x.orValue(1) == 1 && device.attributes['b'].size() == 0",
            "'a' in device.attributes",
            "'a' in device.attributes && device.attributes['a'].x == 1",
        )
    }

    assert list(answers.values()) == [False, True, False, False]
    with pytest.raises(CelError, match='"x"'):
        expression("device.attributes['a'].x == 1").is_true(variables)


def test_a_missing_key_of_a_map_without_a_default_is_an_error() -> None:
    with pytest.raises(CelError, match='"a"'):
        expression("has(device.attributes['a'].x)").is_true({"device": {"attributes": {}}})


def test_an_expression_over_many_missing_keys_fails_with_the_missing_key() -> None:
    asked = ", ".join(f"'{n}'" for n in range(100))
    missing = expression(f"[{asked}].all(one, !has(device[one].x))")

    with pytest.raises(CelError, match="Key not found"):
        missing.is_true({"device": Domains()})


def test_each_device_is_evaluated_separately() -> None:
    large = expression("device.memory.isGreaterThan(quantity('20Gi'))")
    sizes = ["10Gi", "40Gi", "10Gi", "80Gi"]

    answers = [large.is_true({"device": {"memory": Quantity(parse(size))}}) for size in sizes]

    assert answers == [False, True, False, True]


def test_repeated_evaluation_uses_no_more_memory() -> None:
    """The library never frees what it hands to functions that are not its own."""
    large = expression("device.memory.isGreaterThan(quantity('20Gi'))")
    variables = {"device": {"memory": Quantity(parse("40Gi"))}}
    assert large.is_true(variables)

    tracemalloc.start()
    try:
        for _ in range(1000):
            large.is_true(variables)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 10_000, "bytes"


def test_versions_are_ordered_as_in_semver() -> None:
    ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    ordered += ["1.0.0-rc.1", "1.0.0", "1.10.0"]

    shuffled = ordered[::-1]
    shuffled.sort(key=Semver.read)

    assert shuffled == ordered
    assert Semver.read("1.0.0+build") == Semver.read("1.0.0")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("v1.2", "1.2.0"),
        ("01.002.0003-rc.1+build", "1.2.3-rc.1"),
        ("1.2.3-rc-1", "1.2.3-rc-1"),
        ("1.2-rc.1", None),
        ("1+build", None),
        (" 1.2.3", None),
        ("1.2.3.4", None),
        ("1.2.3-01", None),
        ("v", None),
    ],
)
def test_lenient_version_parsing_accepts_what_kubernetes_accepts(
    text: str, read: str | None
) -> None:
    """Kubernetes' `semver(text, true)`: a "v" in front, zeros, and a short version that ends there.

    https://pkg.go.dev/k8s.io/apiserver/pkg/cel/library#SemverLib
    """
    assert expression(f"isSemver('{text}', true)").is_true({}) is (read is not None)
    if read is not None:
        assert str(Semver.read(text, normalize=True)) == read
