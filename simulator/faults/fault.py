"""A fault as a user writes it: a line of text such as `kill rank=2 at=all_reduce#3`, or a function of one's own.

The parameters of the functions in the catalogue are the grammar: their names, their types (see `values`), their
defaults. `str` of a fault reads back as an equal one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from simulator.engine.errors import UsageError, require
from simulator.faults.catalogue import CATALOGUE
from simulator.faults.injection import Injection
from simulator.faults.values import READERS, read_value

FaultFunction = Callable[[Injection], None]
"""A fault of one's own: called once before the run, to say what it will do, and when."""


class Parameter(NamedTuple):
    """One `name=value` of a fault."""

    name: str
    kind: type
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the catalogue, with what it was given; `text` as it was written, for people."""

    kind: str
    given: Mapping[str, Any]
    text: str = field(default="", compare=False)

    def __call__(self, injection: Injection) -> None:
        CATALOGUE[self.kind](injection, **self.given)

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.given.items())])

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read a line such as `kill rank=2 at=2.5s`.

        Raises:
            UsageError: what was given, and what would do.
        """
        words = text.split()
        kind = words[0].replace("_", "-") if words else ""
        if kind not in CATALOGUE:
            raise UsageError(f"fault {text!r}: give one of {', '.join(CATALOGUE)}, as in 'kill rank=2 at=all_reduce#3'")
        known = {parameter.name: parameter for parameter in parameters(kind)}
        given: dict[str, Any] = {}
        for word in words[1:]:
            name, sign, value = word.partition("=")
            fits = bool(sign) and name in known and name not in given
            require(fits, f"fault {text!r}: {word!r} does not fit; write {usage(kind)}")
            try:
                given[name] = read_value(known[name].kind, name, value)
            except UsageError as error:
                raise UsageError(f"fault {text!r}: {error}") from None
        missing = [name for name, parameter in known.items() if parameter.required and name not in given]
        require(not missing, f"fault {text!r}: {', '.join(missing)} is missing; write {usage(kind)}")
        return cls(kind, {name: given[name] for name in known if name in given}, " ".join([kind, *words[1:]]))


@cache
def parameters(kind: str) -> tuple[Parameter, ...]:
    """What a fault of the catalogue takes, in the order in which it is written."""
    function = CATALOGUE[kind]
    hints = get_type_hints(function)
    return tuple(
        Parameter(name, _plain(hints[name]), parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )


def _plain(hint: Any) -> type:
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    found: type = kinds[0] if kinds[0] in READERS else hint
    return found


def usage(kind: str) -> str:
    """How a fault is written: `kill rank=RANKS at=MOMENT [how=kill|raise] [restart=TIME]`."""

    def shown(parameter: Parameter) -> str:
        text = f"{parameter.name}={READERS[parameter.kind].form}"
        return text if parameter.required else f"[{text}]"

    return " ".join([kind, *map(shown, parameters(kind))])


def described() -> Iterator[tuple[str, str]]:
    """Of each fault of the catalogue, how it is written and what it does."""
    for kind, function in CATALOGUE.items():
        yield usage(kind), inspect.getdoc(function) or ""


def fault_of(given: object) -> Fault | FaultFunction:
    """A fault from its text; a fault or a function is taken as it is.

    Raises:
        UsageError: it is none of them, or the text does not fit.
    """
    if isinstance(given, str):
        return Fault.parse(given)
    require(callable(given), f"fault {given!r}: give a text such as 'kill rank=2 at=2.5s', or a function")
    return given  # type: ignore[return-value]
