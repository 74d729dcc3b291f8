"""Expressions in CEL, the Common Expression Language, read once and asked often.

Kubernetes selects devices by them. What is here: the language but for messages, its
macros with `cel.bind`, optional values (`a.?b`, `a[?b]`), and the functions of
`celfunctions`. Types are checked as an expression runs, not before: the API server has
done so when it took the expression in.

Written here after three packages were tried with what selectors use. cel-python 0.5.0 and
common-expression-language 0.10.0 read neither `cel.bind` nor `a[?b]`; cel-expr-python 0.1.3
(52 MB) reads both, but calls no functions on values of other types than its own, which
quantities and versions are.
Source: https://github.com/google/cel-spec/blob/master/doc/langdef.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from controller.constraints import celfunctions
from controller.constraints.celfunctions import NOTHING, CelError, Optional

Value = Any
"""Null, bool, int, float, str, bytes, list or mapping; `Quantity`, `Semver`, `Optional`."""

Scope = Mapping[str, Value]
Node = Callable[[Scope], Value]

MOST_CHARACTERS = 10 * 1024
"""The API server takes no longer expression."""

MOST_TURNS = 10_000
"""How many items all comprehensions of one evaluation may go through."""

_TURNS = "what is left of them"
"""Where a scope keeps that; no variable has such a name."""

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|//[^\n]*)+)
    |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<int>(?:0x[0-9a-fA-F]+|\d+)[uU]?)
    |(?P<text>(?:[rR][bB]?|[bB][rR]?)?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''
        |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<name>[A-Za-z_]\w*|`[^`\n]+`)
    |(?P<sign>&&|\|\||[=!<>]=|\.\?|\[\?|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))"
)
_PLAIN_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_CONSTANTS: Mapping[str, Value] = {"true": True, "false": False, "null": None}
_RELATIONS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in"})
_MACROS = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that was read; ask it with `value`."""

    text: str
    _root: Node

    def value(self, variables: Mapping[str, Value]) -> Value:
        """Return what the expression comes to.

        Raises:
            CelError: something is missing, or of a type that the expression cannot use.

        """
        try:
            return self._root({**variables, _TURNS: [MOST_TURNS]})
        except RecursionError:
            raise CelError("the expression nests too deeply") from None

    def is_true(self, variables: Mapping[str, Value]) -> bool:
        """Return what a condition comes to.

        Raises:
            CelError: as `value`, or the answer is neither true nor false.

        """
        found = self.value(variables)
        if not isinstance(found, bool):
            raise CelError(f"comes to {celfunctions.type_name(found)}, not to true or false")
        return found


@lru_cache(maxsize=4096)
def expression(text: str) -> Expression:
    """Read an expression.

    Raises:
        CelError: it is malformed or calls a function that does not exist.

    """
    if len(text) > MOST_CHARACTERS:
        raise CelError(f"longer than {MOST_CHARACTERS} characters")
    try:
        return Expression(text, _Parser(_tokens(text)).whole())
    except RecursionError:
        raise CelError("the expression nests too deeply") from None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    place: int


def _tokens(text: str) -> list[_Token]:
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise CelError(f"unexpected {text[place]!r} at character {place + 1}")
        kind = str(match.lastgroup)
        if kind != "space":
            found.append(_Token(kind, match.group(), place))
        place = match.end()
    return [*found, _Token("end", "the end", place)]


class _Parser:
    """Recursive descent over the grammar of the language; each method is one of its rules."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0

    def whole(self) -> Node:
        root = self._expr()
        if self._next.kind != "end":
            raise self._unexpected()
        return root

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _unexpected(self) -> CelError:
        return CelError(f"unexpected {self._next.text!r} at character {self._next.place + 1}")

    def _take(self) -> _Token:
        token = self._next
        self._place += 1
        return token

    def _taken(self, *signs: str) -> str | None:
        """Take the next token if it is one of these signs or words."""
        if self._next.kind in {"sign", "name"} and self._next.text in signs:
            return self._take().text
        return None

    def _expect(self, sign: str) -> None:
        if self._taken(sign) is None:
            raise self._unexpected()

    def _expr(self) -> Node:
        condition = self._or()
        if not self._taken("?"):
            return condition
        yes = self._or()
        self._expect(":")
        no = self._expr()
        return lambda scope: yes(scope) if _truth(condition(scope)) else no(scope)

    def _or(self) -> Node:
        left = self._and()
        while self._taken("||"):
            left = _either(left, self._and(), winner=True)
        return left

    def _and(self) -> Node:
        left = self._relation()
        while self._taken("&&"):
            left = _either(left, self._relation(), winner=False)
        return left

    def _relation(self) -> Node:
        left = self._sum()
        while sign := self._taken(*_RELATIONS):
            left = _binary(sign, left, self._sum())
        return left

    def _sum(self) -> Node:
        left = self._product()
        while sign := self._taken("+", "-"):
            left = _binary(sign, left, self._product())
        return left

    def _product(self) -> Node:
        left = self._unary()
        while sign := self._taken("*", "/", "%"):
            left = _binary(sign, left, self._unary())
        return left

    def _unary(self) -> Node:
        if self._taken("!"):
            denied = self._unary()
            return lambda scope: not _truth(denied(scope))
        if self._taken("-"):
            operand = self._unary()
            return lambda scope: celfunctions.call("-_", (operand(scope),))
        return self._member()

    def _member(self) -> Node:
        bare = self._next.text if self._next.kind == "name" else ""
        node = self._primary()
        while True:
            if self._taken("."):
                node = self._selected(node, bare)
            elif self._taken(".?"):
                node = _Look(node, _constant(self._name()), True)
            elif sign := self._taken("[", "[?"):
                index = self._expr()
                self._expect("]")
                node = _Look(node, index, sign == "[?")
            else:
                return node
            bare = ""

    def _name(self) -> str:
        if self._next.kind != "name":
            raise self._unexpected()
        return self._take().text.strip("`")

    def _selected(self, target: Node, bare: str) -> Node:
        """A field, a method or a macro of what came before; `bare` if that was one name."""
        name = self._name()
        if not self._taken("("):
            return _Look(target, _constant(name), False)
        if bare == "cel" and name == "bind":
            return self._bind()
        if name in _MACROS:
            return self._comprehension(name, target)
        if name in {"optMap", "optFlatMap"}:
            return self._mapped(name, target)
        arguments = self._arguments(")")
        if celfunctions.exists(f"{bare}.{name}"):
            return _called(f"{bare}.{name}", arguments)
        return _called(name, [target, *arguments])

    def _bind(self) -> Node:
        name = self._name()
        self._expect(",")
        given = self._expr()
        self._expect(",")
        body = self._expr()
        self._expect(")")
        return lambda scope: body({**scope, name: given(scope)})

    def _mapped(self, macro: str, target: Node) -> Node:
        name = self._name()
        self._expect(",")
        body = self._expr()
        self._expect(")")

        def mapped(scope: Scope) -> Value:
            found = target(scope)
            if not isinstance(found, Optional):
                raise CelError(f"{macro} is for optional values")
            if not found.held:
                return NOTHING
            value = body({**scope, name: found.held[0]})
            return value if macro == "optFlatMap" else Optional((value,))

        return mapped

    def _comprehension(self, macro: str, target: Node) -> Node:
        name = self._name()
        self._expect(",")
        body = self._expr()
        then = self._expr() if macro == "map" and self._taken(",") else None
        self._expect(")")
        if macro == "map":
            kept, result = (None, body) if then is None else (body, then)
            return lambda scope: [
                result(inner)
                for inner in _each(target, name, scope)
                if kept is None or _truth(kept(inner))
            ]
        if macro == "filter":
            return lambda scope: [
                inner[name] for inner in _each(target, name, scope) if _truth(body(inner))
            ]
        if macro == "all":
            return lambda scope: _any(body, _each(target, name, scope), winner=False)
        if macro == "exists":
            return lambda scope: _any(body, _each(target, name, scope), winner=True)
        return lambda scope: sum(_truth(body(one)) for one in _each(target, name, scope)) == 1

    def _arguments(self, end: str) -> list[Node]:
        found: list[Node] = []
        while not self._taken(end):
            if found:
                self._expect(",")
                if self._taken(end):  # a comma may stand after the last one
                    break
            found.append(self._expr())
        return found

    def _primary(self) -> Node:
        self._taken(".")
        if self._taken("("):
            inner = self._expr()
            self._expect(")")
            return inner
        if self._taken("["):
            items = self._arguments("]")
            return lambda scope: [item(scope) for item in items]
        if self._taken("{"):
            return self._map()
        token = self._take()
        if token.kind == "int":
            return _constant(int(token.text.rstrip("uU"), 0 if "x" in token.text else 10))
        if token.kind == "float":
            return _constant(float(token.text))
        if token.kind == "text":
            return _constant(_unquoted(token.text))
        if token.kind == "name":
            return self._named(token.text)
        self._place -= 1
        raise self._unexpected()

    def _map(self) -> Node:
        pairs: list[tuple[Node, Node]] = []
        while not self._taken("}"):
            if pairs:
                self._expect(",")
                if self._taken("}"):
                    break
            key = self._expr()
            self._expect(":")
            pairs.append((key, self._expr()))
        return lambda scope: _mapping([(key(scope), value(scope)) for key, value in pairs])

    def _named(self, name: str) -> Node:
        if name in _CONSTANTS:
            return _constant(_CONSTANTS[name])
        if not self._taken("("):
            return lambda scope: _variable(scope, name)
        if name == "has":
            return self._has()
        return _called(name, self._arguments(")"))

    def _has(self) -> Node:
        asked = self._member()
        self._expect(")")
        if not isinstance(asked, _Look) or asked.maybe:
            raise CelError("has() asks for a field, such as has(a.b)")
        return asked.has


def _constant(value: Value) -> Node:
    return lambda scope: value


def _mapping(pairs: list[tuple[Value, Value]]) -> dict[Value, Value]:
    for key, _ in pairs:
        if not isinstance(key, bool | int | str):
            raise CelError(f"{celfunctions.type_name(key)} cannot be the key of a map")
    return dict(pairs)


def _variable(scope: Scope, name: str) -> Value:
    try:
        return scope[name]
    except KeyError:
        raise CelError(f"{name} is not known here") from None


def _called(name: str, arguments: list[Node]) -> Node:
    if not celfunctions.exists(name):
        raise CelError(f"function {name} is not known here")
    return lambda scope: celfunctions.call(name, tuple(one(scope) for one in arguments))


def _binary(sign: str, left: Node, right: Node) -> Node:
    if sign == "==":
        return lambda scope: celfunctions.equal(left(scope), right(scope))
    if sign == "!=":
        return lambda scope: not celfunctions.equal(left(scope), right(scope))
    name = f"_{sign}_"
    return lambda scope: celfunctions.call(name, (left(scope), right(scope)))


def _truth(value: Value) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"{celfunctions.type_name(value)} stands where true or false is needed")
    return value


def _either(left: Node, right: Node, *, winner: bool) -> Node:
    """`||` (true wins) and `&&` (false wins): the winner on one side outdoes an error."""

    def either(scope: Scope) -> bool:
        try:
            if _truth(left(scope)) is winner:
                return winner
        except CelError:
            if _truth(right(scope)) is winner:
                return winner
            raise
        return _truth(right(scope))

    return either


def _any(body: Node, scopes: list[Scope], *, winner: bool) -> bool:
    """Whether one of many decides, as by `||` or `&&` over them all."""
    error: CelError | None = None
    for scope in scopes:
        try:
            if _truth(body(scope)) is winner:
                return winner
        except CelError as exc:
            error = exc
    if error is not None:
        raise error
    return not winner


def _each(target: Node, name: str, scope: Scope) -> list[Scope]:
    items = target(scope)
    if not isinstance(items, list | Mapping):
        raise CelError(f"{celfunctions.type_name(items)} has no items to go through")
    scope[_TURNS][0] -= len(items)
    if scope[_TURNS][0] < 0:
        raise CelError(f"goes through more than {MOST_TURNS} items")
    return [{**scope, name: item} for item in items]


@dataclass(frozen=True, slots=True)
class _Look:
    """A field or an item; of an `Optional` target, or with `maybe`, an optional one."""

    target: Node
    key: Node
    maybe: bool

    def __call__(self, scope: Scope) -> Value:
        holder, wanted = self.target(scope), self.key(scope)
        if isinstance(holder, Optional):
            return _item_if_any(holder.held[0], wanted) if holder.held else NOTHING
        return _item_if_any(holder, wanted) if self.maybe else _item(holder, wanted)

    def has(self, scope: Scope) -> bool:
        """Whether there is such a field, as the macro `has` asks."""
        holder = self.target(scope)
        if isinstance(holder, Optional):
            return bool(holder.held) and bool(_item_if_any(holder.held[0], self.key(scope)).held)
        if not isinstance(holder, Mapping):
            raise CelError(f"{celfunctions.type_name(holder)} has no fields")
        return self.key(scope) in holder


def _item(holder: Value, key: Value) -> Value:
    if isinstance(holder, Mapping):
        try:
            return holder[key]
        except (KeyError, TypeError):
            raise CelError(f"there is no {key}") from None
    if isinstance(holder, list) and isinstance(key, int) and not isinstance(key, bool):
        if 0 <= key < len(holder):
            return holder[key]
        raise CelError(f"index {key} of a list of {len(holder)}")
    raise CelError(f"{celfunctions.type_name(holder)} has no {key}")


def _item_if_any(holder: Value, key: Value) -> Optional:
    try:
        return Optional((_item(holder, key),))
    except CelError:
        if isinstance(holder, list | Mapping):
            return NOTHING
        raise


def _unquoted(text: str) -> str | bytes:
    """Read a string or bytes literal; raw ones keep their backslashes."""
    quote = re.search(r"'''|\"\"\"|['\"]", text)
    assert quote is not None
    prefix = text[: quote.start()].lower()
    inner = text[quote.end() : -len(quote.group())]
    if "r" not in prefix:
        inner = _ESCAPE.sub(_unescaped, inner)
    return inner.encode() if "b" in prefix else inner


def _unescaped(match: re.Match[str]) -> str:
    *codes, octal, plain = match.groups()
    for code in codes:
        if code is not None:
            return chr(int(code, 16))
    if octal is not None:
        return chr(int(octal, 8))
    return str(_PLAIN_ESCAPES.get(plain, plain))
