"""Any stack setting is accepted, or rejected with a helpful message, never with a traceback."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.options import SETTINGS, Options, to_environment
from infra.config.checks import require_options
from infra.config.forms import ConfigError
from infra.config.reading import parse
from infra.config.settings import KEYS, StackConfig

ENOUGH = {
    "clusterName": "joiner",
    "region": "us-west-2",
    "image": "joiner:1",
}
ODD = [
    *(" ", "-", "/", "\0", "~nobody/config", "a\nb", "é", "١٢", "٣Gi", "${X}"),
    *("1x", "NaN", "inf", "1e999", "-1", "0", "9" * 400, "9" * 5000, "9" * 400 + "h", "1e400s"),
    *("null", "true", "yes", "0b", "1:60", "2024-13-45", "x" * 10_000),
    *("[]", "{}", "[1]", "[{}]", "[null]", "{1: x}", "{null: x}", '{"": "x"}', '{"a": {}}'),
    *(
        "[" * (sys.getrecursionlimit() // 2),  # PyYAML calls itself three times for each
        "&a [*a]",
        "*a",
        "!!python/object:os.system x",
        "{a: 2024-13-45}",
        "{a: 0b}",
    ),
    *('{"a": null}', '{"aws:a": "x"}', '{"a": "\\n"}', "arn:aws:iam::١٢٣٤٥٦٧٨٩٠١٢:policy/x"),
]
REFUSED = (
    "allowed is",
    "allowed are",
    "the settings are",
    "did you mean",
    "cannot be set here",
    "is missing",
    "is set with --path",
)
texts = st.one_of(
    st.sampled_from(ODD),
    st.text(),
    st.text(alphabet="0123456789eEx.-_smhGiM %[]{}:,'\"&*!"),
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts)
structures = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=5
).map(json.dumps)


def read_or_refused(given: dict[str, str]) -> StackConfig | None:
    """The settings as read; None when they were refused, which is asserted to be in our words."""
    try:
        return parse(given)
    except ConfigError as refused:
        for problem in refused.problems:
            assert problem.startswith("joiner:")
            assert any(words in problem for words in REFUSED), problem
        return None


def assert_written(options: Options) -> None:
    """Return the environment of the Deployment's containers."""
    written = to_environment(options)
    assert to_environment(Options.parse([], written)) == written


@given(key=st.sampled_from(sorted(KEYS)), value=st.one_of(texts, structures))
def test_an_invalid_setting_is_refused_with_key_value_and_allowed_values(
    key: str, value: str
) -> None:
    try:
        # A stack with `platformStack` has no image.
        enough = {k: v for k, v in ENOUGH.items() if (k, key) != ("image", "platformStack")}
        config = parse(enough | {key: value})
    except ConfigError as refused:
        for problem in refused.problems:
            assert problem.startswith(f"joiner:{key}")
            assert any(words in problem for words in REFUSED), problem
            # For a map, the message shows the entry.
            assert not value or repr(value) in problem or value.lstrip().startswith("{"), problem
    else:
        # The program passes these values to AWS and the cluster unchanged.
        assert_written(require_options(config.settings))
        assert config.drain_timeout.total_seconds() >= 1


@given(
    variable=st.sampled_from(sorted(setting.variable for setting in SETTINGS)),
    value=leaves,
)
@example(variable="CLUSTER_NAME", value="")
@example(variable="INSTALLATION", value="x" * 300)
@example(variable="LOG_ERROR_OUTPUT_PATHS", value=" ")
def test_an_invalid_setting_of_the_controller_is_refused_by_name(
    variable: str, value: object
) -> None:
    try:
        config = parse(ENOUGH | {"settings": json.dumps({variable: value})})
    except ConfigError as refused:
        (problem,) = refused.problems
        assert problem.startswith("joiner:settings")
        assert variable in problem
        assert any(words in problem for words in REFUSED), problem
    else:
        assert_written(require_options(config.settings))


@given(given=st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(min_size=1), texts))
@example(given={"kubeconfig.": " "})
def test_all_invalid_settings_are_refused_together_by_key(given: dict[str, str]) -> None:
    read_or_refused(given)


@pytest.mark.parametrize("value", ODD)
def test_no_invalid_value_causes_a_traceback(value: str) -> None:
    for key in KEYS:
        read_or_refused(ENOUGH | {key: value})
