"""Regular expressions whose answer never takes long, whoever wrote them.

CEL's `matches` is RE2's. Python's own engine goes back over its steps, and a pattern such as
`(a+)+$` in anybody's resource claim would hold up every other pod. Here a pattern is a step
from the set of places in the text where it may begin to the set where it may end.
Source: https://github.com/google/re2/wiki/Syntax; without flags but for a leading `(?i)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

MOST_REPEATS = 1000
"""RE2 takes no larger counts, nested ones multiplied."""

MOST_CHARACTERS = 1000
"""No attribute of a device is longer than 64."""

Places = frozenset[int]
Step = Callable[[str, Places], Places]
Test = Callable[[str], bool]

_CLASSES: dict[str, Test] = {
    "d": lambda one: "0" <= one <= "9",
    "w": lambda one: one == "_" or (one.isascii() and one.isalnum()),
    "s": lambda one: one in "\t\n\f\r ",
}
_NAMED: dict[str, Test] = {
    "alpha": lambda one: one.isascii() and one.isalpha(),
    "digit": _CLASSES["d"],
    "alnum": lambda one: one.isascii() and one.isalnum(),
    "upper": lambda one: one.isascii() and one.isupper(),
    "lower": lambda one: one.isascii() and one.islower(),
    "space": lambda one: one in "\t\n\v\f\r ",
    "punct": lambda one: one.isascii() and one.isprintable() and not one.isalnum() and one != " ",
    "word": _CLASSES["w"],
    "xdigit": lambda one: one in "0123456789abcdefABCDEF",
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class PatternError(ValueError):
    """A pattern is malformed, or uses what is not known here."""


def is_found(pattern: str, text: str) -> bool:
    """Whether a pattern matches somewhere in a text.

    Raises:
        PatternError: the pattern is malformed, or the text too long.

    """
    if len(text) > MOST_CHARACTERS:
        raise PatternError(f"the text has more than {MOST_CHARACTERS} characters")
    return bool(_read(pattern)(text, frozenset(range(len(text) + 1))))


@lru_cache(maxsize=1024)
def _read(pattern: str) -> Step:
    return _Reader(pattern).whole()


class _Reader:
    """Recursive descent; `_weight` is how often the part just read may be repeated."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._place, self._weight = pattern, 0, 1
        self._ignores_case = self._taken("(?i)")

    def whole(self) -> Step:
        step = self._either()
        if self._place < len(self._pattern):
            raise PatternError("a parenthesis is closed that was not opened")
        return step

    @property
    def _next(self) -> str:
        return self._pattern[self._place : self._place + 1]

    def _taken(self, sign: str) -> bool:
        found = self._pattern.startswith(sign, self._place)
        self._place += len(sign) if found else 0
        return found

    def _take(self) -> str:
        if not self._next:
            raise PatternError("the pattern ends too early")
        self._place += 1
        return self._pattern[self._place - 1]

    def _either(self) -> Step:
        options, weight = [self._sequence()], self._weight
        while self._taken("|"):
            options.append(self._sequence())
            weight = max(weight, self._weight)
        self._weight = weight
        if len(options) == 1:
            return options[0]
        return lambda text, places: frozenset().union(*(one(text, places) for one in options))

    def _sequence(self) -> Step:
        steps: list[Step] = []
        weight = 1
        while self._next and self._next not in "|)":
            steps.append(self._repeated())
            weight = max(weight, self._weight)
        self._weight = weight

        def sequence(text: str, places: Places) -> Places:
            for step in steps:
                if not places:
                    break
                places = step(text, places)
            return places

        return sequence

    def _repeated(self) -> Step:
        self._weight = 1
        step = self._atom()
        while limits := self._limits():
            least, most = limits
            self._weight *= max(least, most or 1, 1)
            if self._weight > MOST_REPEATS:
                raise PatternError(f"more than {MOST_REPEATS} repetitions")
            step = _repeat(step, least, most)
            self._taken("?")  # the shortest match matches no more nor less
        return step

    def _limits(self) -> tuple[int, int | None] | None:
        """Take how often a part is repeated: at least, and at most (None: any number)."""
        for sign, limits in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._taken(sign):
                return limits
        end = self._pattern.find("}", self._place)
        least, comma, most = self._pattern[self._place + 1 : end].partition(",")
        if self._next != "{" or end < 0 or not least.isdigit() or not (most or "0").isdigit():
            return None
        self._place = end + 1
        if not comma:
            return int(least), int(least)
        if most and int(most) < int(least):
            raise PatternError(f"{{{least},{most}}} asks for more than it allows")
        return int(least), int(most) if most else None

    def _atom(self) -> Step:
        sign = self._take()
        if sign == "(":
            return self._group()
        if sign == "[":
            return _one(self._bracket())
        if sign == ".":
            return _one(lambda one: one != "\n")
        if sign == "^":
            return _where(lambda text, place: place == 0)
        if sign == "$":
            return _where(lambda text, place: place == len(text))
        if sign in "*+?":
            raise PatternError(f"there is nothing before {sign} to repeat")
        if sign != "\\":
            return _one(self._cased(sign.__eq__))
        return self._escaped()

    def _cased(self, test: Test) -> Test:
        if not self._ignores_case:
            return test
        return lambda one: test(one.lower()) or test(one.upper())

    def _group(self) -> Step:
        if self._taken("?"):
            if self._taken("P<") or self._taken("<"):
                self._place = self._pattern.find(">", self._place) + 1
            elif not self._taken(":"):
                raise PatternError("of flags only a leading (?i) is known here")
        step = self._either()
        if not self._taken(")"):
            raise PatternError("a parenthesis is not closed")
        return step

    def _escaped(self) -> Step:
        sign = self._take()
        if sign in {"A", "z"}:
            at_end = sign == "z"
            return _where(lambda text, place: place == (len(text) if at_end else 0))
        if sign in {"b", "B"}:
            return _where(lambda text, place: _is_edge(text, place) == (sign == "b"))
        return _one(self._test(sign))

    def _test(self, sign: str) -> Test:
        """Read what stands behind a backslash as a test of one character."""
        if sign.lower() in _CLASSES:
            inside = _CLASSES[sign.lower()]
            return inside if sign.islower() else lambda one: not inside(one)
        if sign == "x":
            code = self._take() + self._take()
            try:
                return chr(int(code, 16)).__eq__
            except ValueError:
                raise PatternError(f"\\x{code} is not a character") from None
        if sign.isalnum() and sign not in _ESCAPES:
            raise PatternError(f"\\{sign} is not known here")
        return _ESCAPES.get(sign, sign).__eq__

    def _bracket(self) -> Test:
        denied = self._taken("^")
        tests: list[Test] = []
        while not tests or not self._taken("]"):
            if self._taken("[:"):
                name, closed, _ = self._pattern[self._place :].partition(":]")
                if not closed or name.lstrip("^") not in _NAMED:
                    raise PatternError(f"[:{name}:] is not known here")
                self._place += len(name) + 2
                inside = _NAMED[name.lstrip("^")]
                tests.append(_denied(inside) if name.startswith("^") else self._cased(inside))
                continue
            sign = self._take()
            if sign == "\\":
                sign = self._take()
                if sign not in _ESCAPES and sign.isalnum():
                    tests.append(self._test(sign))
                    continue
                sign = _ESCAPES.get(sign, sign)
            last = sign
            if self._next == "-" and self._pattern[self._place + 1 : self._place + 2] != "]":
                self._place += 1
                last = self._take()
                last = self._take() if last == "\\" else last
            tests.append(self._cased(_between(sign, last)))
        found = tuple(tests)
        return lambda one: any(test(one) for test in found) != denied


def _denied(test: Test) -> Test:
    return lambda one: not test(one)


def _between(first: str, last: str) -> Test:
    return lambda one: first <= one <= last


def _one(test: Test) -> Step:
    return lambda text, places: frozenset(
        place + 1 for place in places if place < len(text) and test(text[place])
    )


def _where(holds: Callable[[str, int], bool]) -> Step:
    return lambda text, places: frozenset(place for place in places if holds(text, place))


def _is_edge(text: str, place: int) -> bool:
    word = _CLASSES["w"]
    before = place > 0 and word(text[place - 1])
    after = place < len(text) and word(text[place])
    return before != after


def _repeat(step: Step, least: int, most: int | None) -> Step:
    def repeated(text: str, places: Places) -> Places:
        for _ in range(least):
            places = step(text, places)
        found = places
        turns = 0
        while places and (most is None or turns < most - least):
            places = step(text, places) - found
            found |= places
            turns += 1
        return found

    return repeated
