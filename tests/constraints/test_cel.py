"""CEL as selectors of devices use it.

https://github.com/google/cel-spec/blob/master/doc/langdef.md
https://kubernetes.io/docs/reference/using-api/cel/
"""

from __future__ import annotations

import pytest

from controller.constraints.cel import expression
from controller.constraints.celfunctions import CelError, Quantity, Semver

DEVICE = {
    "device": {
        "driver": "gpu.example.com",
        "attributes": {
            "gpu.example.com": {
                "model": "A100",
                "version": Semver(12, 4, 0),
                "index": 3,
                "ecc": True,
            }
        },
        "capacity": {"gpu.example.com": {"memory": Quantity.read("40Gi")}},
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
1 == 1.0 && 1 < 1.5 && true != false
-7 / 2 == -3 && -7 % 2 == -1 && 7.0 / 2.0 == 3.5
"abc".size() == 3 && size([1, 2]) == 2 && int("12") + 1 == 13
"a-b-c".split("-").join("+") == "a+b+c" && "abc".substring(1) == "bc"
"GPU-12".matches("^GPU-[0-9]+$")
r'\\d' == "\\\\d" && "\\x41\\u0042" == 'AB' && b'a' == b"a"
true ? 1 < 2 : 1 / 0 == 0
sets.contains([1, 2, 3], [2]) && [1, 2].includes(2)
quantity("1Gi").add(quantity("1Gi")) == quantity("2Gi") && quantity("50k").asInteger() == 50000
semver("v1.2", true) == semver("1.2.0") && semver("1.2.3").minor() == 2
isSemver("1.2.3") && !isSemver("1.2") && isQuantity("1Gi") && !isQuantity("much")
"""


@pytest.mark.parametrize("text", TRUE.strip().splitlines())
def test_what_is_true_is_true(text: str) -> None:
    assert expression(text).is_true(DEVICE)


@pytest.mark.parametrize(
    "text",
    ["true || nothing.there", "nothing.there || true", "[0, 1].exists(n, 1 / n == 1)"],
)
def test_or_outlives_an_error_when_the_other_side_is_true(text: str) -> None:
    assert expression(text).is_true({})


@pytest.mark.parametrize(
    "text",
    ["false && nothing.there", "nothing.there && false", "[0, 1].all(n, 1 / n == 2)"],
)
def test_and_outlives_an_error_when_the_other_side_is_false(text: str) -> None:
    assert not expression(text).is_true({})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("device.attributes['gpu.example.com'].uuid == 'x'", "there is no uuid"),
        ("device.attributes['gpu.example.com'].model", "string, not to true or false"),
        ("device.attributes['gpu.example.com'].model > 3", "> does not take (string, int)"),
        ("gpu.model == 'x'", "gpu is not known here"),
        ("1 / 0 == 0", "division by zero"),
        ("[1][1] == 1", "index 1 of a list of 1"),
        ("quantity('much').sign() == 1", "'much' is not a quantity"),
        ("'a'.matches('(')", "a parenthesis is not closed"),
        ("false || nothing", "nothing is not known here"),
        ("{[1]: 2} == {}", "cannot be the key of a map"),
        ("optional.none().value() == 1", "is not there"),
        (
            "cel.bind(a, [1,2,3,4,5,6,7,8,9,10], " + "a.all(x, " * 5 + "true" + ")" * 6,
            "10000 items",
        ),
    ],
)
def test_errors_say_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(CelError) as caught:
        expression(text).is_true(DEVICE)

    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("device.driver ==", "unexpected 'the end' at character 17"),
        ("a b", "unexpected 'b' at character 3"),
        ("'a", 'unexpected "\'" at character 1'),
        ("frobnicate(1)", "function frobnicate is not known here"),
        ("has(device)", "has() asks for a field"),
        ("(" * 5000, "nests too deeply"),
        ("a" * 20000, "longer than"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, reason: str) -> None:
    with pytest.raises(CelError) as caught:
        expression(text)

    assert reason in str(caught.value)


def test_versions_are_ordered_as_semver_says() -> None:
    ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    ordered += ["1.0.0-rc.1", "1.0.0", "1.10.0"]

    shuffled = ordered[::-1]
    shuffled.sort(key=Semver.read)

    assert shuffled == ordered
    assert Semver.read("1.0.0+build") == Semver.read("1.0.0")
