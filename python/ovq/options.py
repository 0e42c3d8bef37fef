"""Keywords, defaults and docstrings of options, made of the lists of fields that C++ has."""

import json
import re
import textwrap
from inspect import Parameter, Signature, signature
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, TypeVar

_TYPES = {"integer": int, "number": float, "optional number": float, "bool": bool, "choice": str, "text": str}

F = TypeVar("F", bound=Callable[..., Any])


class Field(NamedTuple):
    """An option; `default` is None where C++ has a zero that stands for something else."""

    name: str
    type: type
    default: Any
    optional: bool
    text: str

    def document(self, required: bool = False) -> str:
        default = "" if self.default is None or required else f" ({self.default!r})"
        return f"{self.name}{default}: {self.text}."

    def parameter(self, kind: Any = Parameter.KEYWORD_ONLY, required: bool = False) -> Parameter:
        annotation = Optional[self.type] if self.optional else self.type
        return Parameter(self.name, kind, default=Parameter.empty if required else self.default, annotation=annotation)

    def from_json(self, value: Any) -> Any:
        """A number that may be absent is 0 in files."""
        return None if self.default is None and self.type is float and value == 0 else value


def fields_of(description: str) -> List[Field]:
    return [_field(**field) for field in json.loads(description)]


def _field(
    name: str, type: str, default: Any, text: str, values: Iterable[str] = (), range: str = "", zero: str = ""
) -> Field:
    optional = type == "optional number" or bool(zero)
    if values:
        text += ": " + ", ".join(f'"{value}"' for value in values)
    if zero:
        text += f"; None: {zero}"
    elif type == "optional number":
        text += f", {range}"
    return Field(name, _TYPES[type], None if optional else default, optional, text)


def documented(doc: Optional[str], fields: Iterable[Field], own: Signature) -> Optional[str]:
    """A docstring with a line per option of the signature in place of the line "{options}", indented like it."""
    place = re.search(r"^( *)\{options\}", doc or "", re.M)  # there is none with python -OO
    if doc is None or place is None:
        return doc
    lines: List[str] = []
    for field in fields:
        required = own.parameters[field.name].default is Parameter.empty
        first, rest = place[1], place[1] + "    "
        lines += textwrap.wrap(field.document(required), 120, initial_indent=first, subsequent_indent=rest)
    return doc.replace(place[0], "\n".join(lines))


def with_options(fields: List[Field]) -> Callable[[F], F]:
    """For a function that takes **options: they appear in its signature and docstring, and others are a TypeError."""
    names = {field.name for field in fields}

    def decorate(function: F) -> F:
        own = signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        first = next(i for i, p in enumerate(parameters) if p.kind is Parameter.KEYWORD_ONLY)
        keywords = [field.parameter() for field in fields]
        function.__signature__ = own.replace(parameters=parameters[:first] + keywords + parameters[first:])
        function.__doc__ = documented(function.__doc__, fields, function.__signature__)
        function._option_names = names
        return function

    return decorate


def check_names(function: Callable[..., Any], options: Dict[str, Any]) -> None:
    for name in options:
        if name not in function._option_names:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument '{name}'")


def constructor(
    type: str, fields: List[Field], positional: Iterable[str], make: Callable[..., None]
) -> Callable[..., None]:
    """An __init__(self, dim, ...) with the fields as keywords, those in `positional` also by position; heads have no
    default unless C++ can do without. It calls make(self, type, dim, **options)."""
    by_name = {field.name: field for field in fields}
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter("self", kind), Parameter("dim", kind, annotation=int)]
    for name in positional:
        parameters.append(by_name[name].parameter(kind, required=name == "heads" and not by_name[name].optional))
    parameters += [field.parameter() for field in fields if field.name not in positional]
    for name in ("device", "dtype"):
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Any))
    own = Signature(parameters, return_annotation=None)

    def __init__(*args: Any, **kwargs: Any) -> None:
        bound = own.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        make(values.pop("self"), type, values.pop("dim"), **values)

    __init__.__signature__ = own
    return __init__
