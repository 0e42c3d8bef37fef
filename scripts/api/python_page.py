"""docs/api-python.md: what `ovq.__all__` and `ovq.layers.__all__` name, and the functions of `ovq.reference`."""

import ast
import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from markdown_text import WIDTH, Page, blocks, escaped, wrapped

# Modules in the order of the page, or one name of a module. A section without a text has its first module's docstring.
SECTIONS = [
    ("OVQ-attention and attention", None, ["ops.__init__", "ops.ovq_attention", "ops.attention", "state"]),
    (
        "Ops of the other mixers",
        "The recurrences of the linear layers, and what layers do around them.",
        """ops.gated_delta_rule ops.linear_attention ops.ssd ops.mesa ops.short_convolution ops.norms ops.rotary
        ops.vector_quantize""".split(),
    ),
    (
        "Layers",
        "Sequence mixers as ordinary `torch.nn.Module`s with one interface, that of `Mixer`.",
        """layers.mixer layers.ovq_attention layers.attention layers.vq_attention layers.gated_delta_net layers.mamba2
        layers.mesa_net layers.linear_attention layers.mixers layers.state""".split(),
    ),
    (
        "Language models",
        "`CausalLM` is made of the layers, to train, adapt, compile and shard. `LanguageModel` is the engine in C++: "
        "it generates text and keeps states of bounded size. Both take the same configurations, and their `state_dict`s "
        "have the same names.",
        ["layers.causal_lm/CausalLM", "language_model", "model_state"],
    ),
    (
        "Parts of layers and models",
        "What the layers and `CausalLM` are made of: modules whose first line says what calling them computes.",
        """layers.projection layers.rms_norm layers.short_convolution layers.gated_mlp layers.vector_quantizer
        layers.causal_lm""".split(),
    ),
]
# What layers and their states do among themselves.
INTERNAL = {"write_weights", "shared", "become"}
PLAIN_NAMES = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Type": "type"}


@dataclass
class Source:
    text: str
    tree: ast.Module
    definitions: Dict[str, ast.stmt] = field(default_factory=dict)  # functions, classes, constants with a type

    def docstring(self) -> str:
        """As it is written: ast.get_docstring would take the indentation of a formula for that of all lines."""
        first = self.tree.body[0]
        return ast.literal_eval(ast.get_source_segment(self.text, first.value))  # type: ignore[attr-defined, arg-type]


class Package:
    """The package's modules, parsed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sources: Dict[str, Source] = {}
        self.aliases: Dict[str, ast.expr] = {}
        self.classes: Dict[str, ast.ClassDef] = {}
        for path in sorted(directory.rglob("*.py")):
            self._read(".".join(path.relative_to(directory).with_suffix("").parts), path)

    def __getitem__(self, module: str) -> Source:
        return self._sources[module]

    def _read(self, module: str, path: Path) -> None:
        text = path.read_text()
        source = self._sources[module] = Source(text, ast.parse(text))
        for node in source.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                source.definitions[node.name] = node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                source.definitions[node.target.id] = node
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                self.aliases[node.targets[0].id] = node.value  # type: ignore[attr-defined]
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node

    def names(self, module: str) -> List[str]:
        """The module's __all__."""
        for node in self[module].tree.body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":  # type: ignore[attr-defined]
                return ast.literal_eval(node.value)
        raise LookupError(f"{module} has no __all__")

    def bases(self, node: ast.ClassDef) -> List[ast.ClassDef]:
        """Base classes of this package, the nearest one first."""
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                return [self.classes[base.id], *self.bases(self.classes[base.id])]
        return []


class Types(ast.NodeTransformer):
    """An annotation with the package's aliases spelled out, as int | None and list[int]."""

    def __init__(self, package: Package, owner: str) -> None:
        self._aliases, self._owner = package.aliases, owner

    def text(self, annotation: ast.expr) -> str:
        shown = ast.unparse(self.visit(ast.parse(ast.unparse(annotation), mode="eval").body))
        return shown.replace("nn.Module", "torch.nn.Module")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            return self.visit(ast.parse(node.value, mode="eval").body)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "Self":
            return ast.Name(self._owner, ast.Load())
        if node.id in self._aliases:
            return self.visit(ast.parse(ast.unparse(self._aliases[node.id]), mode="eval").body)
        return ast.Name(PLAIN_NAMES.get(node.id, node.id), ast.Load())

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        if name not in ("Optional", "Union"):
            return self.generic_visit(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        result = self.visit(parts[0])
        for part in [*parts[1:], *([ast.Constant(None)] if name == "Optional" else [])]:
            result = ast.BinOp(result, ast.BitOr(), self.visit(part))
        return result


class PythonPage:
    def __init__(self, root: Path) -> None:
        self.package = Package(root / "python" / "ovq")
        own, layers = self.package.names("__init__"), self.package.names("layers.__init__")
        self.full_names = {**{name: f"ovq.layers.{name}" for name in layers}, **{name: f"ovq.{name}" for name in own}}
        self.page = Page("Python API", INTRODUCTION, one_line=True)

    def write(self) -> str:
        left = set(self.full_names) - {"layers", "reference"}
        for title, text, modules in SECTIONS:
            self.page.section(title, blocks(text or self.package[modules[0]].docstring(), 4))
            for module, _, only in (entry.partition("/") for entry in modules):
                for name, node in self.package[module].definitions.items():
                    if name in left and only in ("", name):
                        left.remove(name)
                        self._write_symbol(module, name, node)
        if left:
            raise LookupError(f"no section of {Path(__file__).name} has the module of {', '.join(sorted(left))}")
        text = blocks(self.package["reference.__init__"].docstring(), 4)
        self.page.section("Formulas", [*text, *wrapped(REFERENCE), ""])
        formulas = self.package.names("reference.__init__")
        ops = [module for *_, modules in SECTIONS for module in modules if module.startswith("ops.")]
        for module in (op.replace("ops.", "reference.") for op in ops):
            for name, node in self.package[module].definitions.items():
                if name in formulas:
                    signature = self._signature(module, node, f"ovq.reference.{name}")
                    self.page.entry(f"reference.{name}", [*code(signature), *docstring_text(node)])
        return self.page.text()

    def _write_symbol(self, module: str, name: str, node: ast.stmt) -> None:
        full = self.full_names[name]
        if isinstance(node, ast.ClassDef):
            self._write_class(module, node)
        elif isinstance(node, ast.FunctionDef):
            self.page.entry(name, [*code(self._signature(module, node, full)), *docstring_text(node)])
        elif isinstance(node, ast.AnnAssign):
            text = following_docstring(self.package[module].tree.body, node)
            self.page.entry(name, [*code(f"{full}: {Types(self.package, '').text(node.annotation)}"), *blocks(text, 4)])

    def _write_class(self, module: str, node: ast.ClassDef) -> None:
        bases = self.package.bases(node)
        has_common = any(base.name in self.full_names for base in bases)
        body = code(self._constructor(module, node))
        arguments = Docstring(ast.get_docstring(node) or "")
        body += arguments.description
        definitions = self.package[module].definitions
        if sum(name in self.full_names and isinstance(x, ast.ClassDef) for name, x in definitions.items()) == 1:
            # The rest of the module's docstring: formulas.
            body += blocks(self.package[module].docstring().partition("\n\n")[2], 4)
        body += arguments.lists()
        # A base class without an entry of its own belongs to this one; what lies between this and an entry is internal.
        owners = [node] if has_common else [node, *bases]
        attributes = [line for owner in reversed(owners) for line in self._attributes(owner, node.name)]
        methods, parts = self._methods(owners, node.name)
        if has_common:
            kind = next(n.value for n in node.body if isinstance(n, ast.Assign) and n.targets[0].id == "kind")
            body += [*wrapped(f'Its name in configurations is `"{ast.literal_eval(kind)}"`. {COMMON}'), ""]
        elif attributes or methods:
            body += ["Attributes and methods:" if attributes else "Methods:", ""]
        self.page.entry(f"class {node.name}", [*body, *attributes, *methods, ""])
        for heading, text in parts:
            self.page.part(heading, text)

    def _constructor(self, module: str, node: ast.ClassDef) -> str:
        full = self.full_names[node.name]
        docstring = ast.get_docstring(node) or ""
        makes = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if any(isinstance(x, ast.Name) and x.id == "dataclass" for d in node.decorator_list for x in ast.walk(d)):
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and f"\n    {n.target.id}: " in docstring]
            types = Types(self.package, node.name)
            shown = [f"{n.target.id}: {types.text(n.annotation)}{self._default(module, n.value)}" for n in fields]
            return filled(f"class {full}(", [shown], ")")
        if makes is None or makes.args.args[1].arg == "handle":  # a compiled object, which no user has
            return f"class {full}"
        return "class " + self._signature(module, makes, full, node.name).replace(") -> None", ")")

    def _default(self, module: str, value: Optional[ast.expr]) -> str:
        if value is None:
            return ""
        text = ast.get_source_segment(self.package[module].text, value) or ""
        made = re.fullmatch(r"field\(default_factory=dict\)", text)
        return " = {}" if made else f" = {text}"

    def _signature(self, module: str, node: ast.FunctionDef, name: str, owner: str = "", width: int = 110) -> str:
        types, arguments = Types(self.package, owner), node.args

        def one(argument: ast.arg, default: Optional[ast.expr], stars: str = "") -> str:
            annotation = f": {types.text(argument.annotation)}" if argument.annotation else ""
            return f"{stars}{argument.arg}{annotation}{self._default(module, default)}"

        bound = 1 if arguments.args and arguments.args[0].arg in ("self", "cls") else 0
        defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
        groups = [[one(a, d) for a, d in list(zip(arguments.args, defaults))[bound:]]]
        if arguments.kwonlyargs:
            groups.append(["*", *(one(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults))])
        if arguments.kwarg:
            groups[-1].append(one(arguments.kwarg, None, "**"))
        returns = f" -> {types.text(node.returns)}" if node.returns else ""
        return filled(f"{name}(", groups, f"){returns}", width)

    def _attributes(self, owner: ast.ClassDef, shown_as: str) -> List[str]:
        """Properties, and what has a docstring behind it, in the class or in its constructor."""
        types, lines = Types(self.package, shown_as), []
        makes = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        for body in [owner.body, *(m.body for m in makes)]:
            for node in body:
                target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
                name = getattr(target, "id", getattr(target, "attr", "_"))
                text = "" if name.startswith("_") else following_docstring(body, node)
                if text:
                    annotation = getattr(node, "annotation", None)
                    lines += attribute(name, types.text(annotation) if annotation else "", text)
        for node in owner.body:
            if is_property(node) and ast.get_docstring(node) and not node.name.startswith("_"):
                lines += attribute(node.name, types.text(node.returns), ast.get_docstring(node))
        return lines

    def _methods(self, owners: List[ast.ClassDef], name: str) -> Tuple[List[str], List[Tuple[str, List[str]]]]:
        """Lines for the short ones, and (heading, text) for those that need more."""
        lines, parts, seen = [], [], set()
        for owner in owners:
            source = next(m for m in self.package._sources if owner in self.package[m].tree.body)
            for node in owner.body:
                text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
                if not text or node.name.startswith("_") or node.name in INTERNAL | seen or is_property(node):
                    continue
                seen.add(node.name)
                decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
                prefix = f"{name}." if decorators & {"classmethod", "staticmethod"} else ""
                if "\n\n" in text:
                    signature = self._signature(source, node, prefix + node.name, name)
                    parts.append((f"{name}.{node.name}", [*code(signature), *docstring_text(node)]))
                else:
                    signature = self._signature(source, node, prefix + node.name, name, width=1000)
                    lines += wrapped(f"`{signature}`: {escaped(' '.join(text.split()))}", "- ", "  ")
        return lines, parts


class Docstring:
    """A docstring in its parts: description, arguments, result."""

    def __init__(self, text: str) -> None:
        head, _, rest = ("\n" + text).partition("\nArgs:\n")
        if not rest:
            head, _, returns = ("\n" + text).partition("\nReturns:\n")
            arguments = ""
        else:
            arguments, _, returns = rest.partition("\nReturns:\n")
        self.description = blocks(head.strip("\n"), 4)
        self._arguments, self._returns = inspect.cleandoc("\n" + arguments), inspect.cleandoc("\n" + returns)

    def lists(self) -> List[str]:
        lines: List[str] = []
        for item in re.split(r"\n(?! )", self._arguments) if self._arguments else []:
            found = re.match(r"(\w+(?:, \w+)*)( \([^)]*\))?: ", item)
            if found is None:
                raise ValueError(f'"{item}" in a list of arguments is not "name: text"')
            names = ", ".join(f"`{name}`" for name in found.group(1).split(", "))
            text = escaped(" ".join(item[found.end() :].split()))
            # Further arguments on the same line: "q: [B, T, H, dk]; v: [B, T, H, dv]".
            more = r"(?<=; )[a-z]\w*(?:, \w+)*(?=: )"
            text = re.sub(more, lambda found: re.sub(r"(\w+)", r"`\1`", found.group()), text)
            lines += wrapped(f"{names}{found.group(2) or ''}: {text}", "- ", "  ")
        if lines:
            lines.append("")
        if self._returns:
            lines += [*wrapped("**Returns** " + escaped(" ".join(self._returns.split()))), ""]
        return lines


def docstring_text(node: ast.AST) -> List[str]:
    docstring = Docstring(ast.get_docstring(node) or "")  # type: ignore[arg-type]
    return [*docstring.description, *docstring.lists()]


def following_docstring(body: List[ast.stmt], node: ast.stmt) -> str:
    after = body[body.index(node) + 1 : body.index(node) + 2]
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not after or not isinstance(after[0], ast.Expr):
        return ""
    value = after[0].value
    return inspect.cleandoc(value.value) if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def attribute(name: str, kind: str, text: Optional[str]) -> List[str]:
    shown = f"`{name}: {kind}`" if kind else f"`{name}`"
    return wrapped(f"{shown}: {escaped(' '.join((text or '').split()))}", "- ", "  ")


def is_property(node: ast.stmt) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(d, ast.Name) and d.id == "property" for d in decorators)


def filled(head: str, groups: List[List[str]], tail: str, width: int = 110) -> str:
    """A signature on one line of that width, or with full lines of arguments, a new one for each group."""
    groups = [group for group in groups if group]
    line = head + ", ".join(argument for group in groups for argument in group) + tail
    if len(line) <= width:
        return line
    lines = []
    for group in groups:
        current = ""
        for argument in group:
            if current and len(current) + len(argument) > WIDTH - 8:
                lines.append(current)
                current = ""
            current += f"{' ' if current else '    '}{argument},"
        lines.append(current)
    lines[-1] = lines[-1].rstrip(",") if "**" in lines[-1] else lines[-1]
    return "\n".join([head, *lines, tail])


def code(text: str) -> List[str]:
    return ["```python", text, "```", ""]


INTRODUCTION = wrapped(
    "What `import ovq` has, with its docstrings; [python.md](python.md) introduces it, and [api-cpp.md](api-cpp.md) is "
    "the same for C++. In shapes B is the batch, T time, H heads, Hq those of the queries, Hkv those of keys and "
    "values, and dk, dv, D are dims of a head."
) + ["", *wrapped("`scripts/api-reference.py` writes this page from the source. Change docstrings, not the page.")]
COMMON = "Its methods and attributes are those of [`Mixer`](#class-mixer)."
REFERENCE = (
    "Their code, a file each, and what it is made of are in [python/ovq/reference](../python/ovq/reference)."
)


def page(root: Path) -> str:
    return PythonPage(root).write()
