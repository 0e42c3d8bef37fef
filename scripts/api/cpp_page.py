"""docs/api-cpp.md: the public headers. Relies on their style: comments above declarations, clang-format's layout."""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Tuple

from markdown_text import WIDTH, Page, blocks, wrapped

SECTIONS = [
    (
        "Kernels",
        "Namespace and target `ovq::kernels`: strided views of float32 memory, no PyTorch. A forward writes to memory "
        "that the caller gives it; the backward of the same call takes what the forward saved.",
        "kernels",
        """view ovq_attention ovq_options ovq_state attention gated_delta_rule linear_attention ssd mesa
        short_convolution parallel isa""",
    ),
    (
        "Ops",
        "Namespace and target `ovq::ops`: functions of torch tensors with autograd.",
        "ops",
        """ovq_attention ovq_state attention gated_delta_rule linear_attention ssd mesa recurrence short_convolution
        rms_norm rotary vector_quantize vq_linear_attention gated_mlp backend""",
    ),
    (
        "Layers",
        "Namespace and target `ovq::nn`: sequence mixers as torch modules. `Mixer` has their interface.",
        "nn",
        """mixer attention_heads ovq_attention attention vq_attention vector_quantizer gated_delta_net mamba2 mesa_net
        linear_attention_mixer""",
    ),
    (
        "Language models",
        "Namespace and target `ovq::models`: models by name or configuration, their files, and text from them.",
        "models",
        "language_model config mixer_options presets weights generate sampling session text_session",
    ),
]
# What the library's own files share through public headers.
INTERNAL = {
    *"enum_names list_fields retired_fields update_retired_mixer_fields add_retired_mixer_fields".split(),
    *"without_retired_fields OvqHead OvqSequence StateRollback StateLayout torch_dtype".split(),
    *"own_kernel set_plain views_of options_of parallel_for fingerprint inside_backward by_head by_token".split(),
    *"check_ssd gather_rows backend_from resolved rotate_composed RecurrentOptions recurrent_options".split(),
    *"named_tensors assign_tensors PackedState pack StateOf set_state_of check_state_of unpack describe_mixer".split(),
    *"NamedTensors save_tensors LoadedTensors load_tensors identity start_statistics kernel plain".split(),
}
# Of recurrence.h only what the recurrences return.
ONLY = {"ovq/ops/recurrence.h": {"RecurrenceResult"}}


@dataclass
class Declaration:
    comment: List[str] = field(default_factory=list)
    lines: List[str] = field(default_factory=list)

    @property
    def code(self) -> str:
        return "\n".join(without_comment(line) for line in self.lines).strip()

    @property
    def bare(self) -> str:
        """Without `template <...>` and other prefixes."""
        return re.sub(r"^(template <[^{;]*?>\s+|inline |constexpr |static |explicit |virtual )+", "", self.code)

    @property
    def kind(self) -> str:
        found = re.match(r"(struct|class|enum|namespace|using|friend)\b", self.bare)
        return found.group(1) if found else "function" if "(" in self.bare.partition("=")[0] else "variable"

    @property
    def name(self) -> str:
        if self.kind in ("struct", "class", "enum", "using"):
            return re.match(r"(?:enum class|\w+) ([\w:]+)", self.bare).group(1)  # type: ignore[union-attr]
        if self.kind == "function":
            found = re.search(r"([~\w]+)\s*\(", re.sub(r"<[^<>()]*\([^()]*\)[^<>]*>", "", self.bare))
            return found.group(1) if found else ""
        return ""

    @property
    def internal(self) -> bool:
        # Of what is defaulted only the constructor without arguments says something.
        defaulted = re.search(r"(?<!\(\)) = (default|delete);$", self.code)
        imported = re.match(r"using (enum |\w+::)", self.bare)
        forward = re.fullmatch(r"(struct|class) \w+;", self.code)
        hidden = self.kind in ("namespace", "friend") or self.name.lstrip("~") in INTERNAL
        return bool(defaulted or imported or forward or hidden)


def without_comment(line: str) -> str:
    return line.partition("//")[0].rstrip()


def paragraphs(lines: List[str]) -> List[List[Declaration]]:
    """Declarations of a scope; a blank line begins another paragraph."""
    result: List[List[Declaration]] = [[]]
    current = Declaration()
    depth = 0
    for line in lines:
        code = without_comment(line).strip()
        if not current.lines and not code:
            if line.strip():
                current.comment.append(line.strip())
            else:
                if current.comment:  # of nothing in particular
                    result[-1].append(current)
                    current = Declaration()
                result.append([])
            continue
        if not current.lines and (code.startswith("#") or re.fullmatch(r"(public|protected|private):", code)):
            result.append([Declaration(lines=[code])])
            result.append([])
            continue
        current.lines.append(line)
        depth += sum(code.count(c) for c in "({[") - sum(code.count(c) for c in ")}]")
        if depth == 0 and code.endswith((";", "}")):
            result[-1].append(current)
            current = Declaration()
    return [paragraph for paragraph in result if paragraph]


def without_body(declaration: Declaration) -> List[str]:
    """A function's declaration."""
    depth, position = 0, -1
    code = declaration.code
    for i, c in enumerate(code):
        if c == "{" and depth == 0 and not code[:i].rstrip().endswith("="):
            position = i
            break
        depth += (c in "({[") - (c in ")}]")
    lines = declaration.lines
    if position >= 0:
        # The initializers of a constructor begin behind its parameters.
        head = re.sub(r"\)\s*:\s.*$", ")", code[:position].rstrip(), flags=re.DOTALL)
        _, slashes, comment = lines[0].partition("//") if len(lines) == 1 else ("", "", "")
        lines = f"{head};{'  ' + slashes if slashes else ''}{comment}".split("\n")
    lines = [re.sub(r"/\*(\w+)\*/", r"\1", re.sub(r"^inline ", "", line)) for line in dedented(lines)]
    return [line.replace("() = default;", "();") for line in lines]


def dedented(lines: List[str]) -> List[str]:
    space = len(lines[0]) - len(lines[0].lstrip())
    return [line[space:] if line[:space].isspace() or not space else line for line in lines]


def shown(declaration: Declaration, options: Dict[str, Dict[str, str]]) -> List[str]:
    """The lines of a declaration and its comment, without what is not public."""
    comment = declaration.comment
    if declaration.kind == "function":
        return [*comment, *without_body(declaration)]
    lines = dedented(declaration.lines)
    if declaration.kind not in ("struct", "class") or len(lines) == 1:
        return [*comment, *lines]
    first = next(i for i, line in enumerate(lines) if without_comment(line).endswith("{"))
    head, body = lines[: first + 1], lines[first + 1 : -1]
    public, members = declaration.kind == "struct", []
    texts = options.get(declaration.name, {})
    for paragraph in paragraphs(textwrap.dedent("\n".join(body)).split("\n")):
        label = paragraph[0].lines[0] if paragraph[0].lines else ""
        if re.fullmatch(r"(public|protected|private):", label):
            public = label == "public:"
            continue
        if not public or " ".join(paragraph[0].comment).startswith("// For the kernels:"):
            continue
        block = [x for member in paragraph if not member.internal for x in with_option(shown(member, options), texts)]
        if block:
            members += [*block, ""]
    members = ["  " + line if line else "" for line in aligned(members[:-1])]
    return [*comment, *head, *([" public:"] if declaration.kind == "class" else []), *members, "};"]


def with_option(lines: List[str], texts: Dict[str, str]) -> List[str]:
    """The text of an option behind the member that holds it."""
    found = re.search(r"(\w+)(?: = [^,]*)?;$", without_comment(lines[-1]))
    if found is None or found.group(1) not in texts:
        return lines
    code, _, own = lines[-1].partition("//")
    text, own = texts[found.group(1)], own.strip()
    if own and own.removeprefix("0: ") not in text:
        text += f" ({own})" if len(own) == 1 else f"; {own}"
    line = f"{code.rstrip()}  // {text}"
    if len(line) + 2 <= WIDTH:
        return [*lines[:-1], line]
    return [*lines[:-1], *textwrap.wrap(text, WIDTH - 5, initial_indent="// ", subsequent_indent="// "), code.rstrip()]


def aligned(lines: List[str]) -> List[str]:
    """Comments of consecutive lines in one column, as far as they fit."""
    result: List[str] = []
    run: List[Tuple[str, str]] = []

    def column(pairs: List[Tuple[str, str]]) -> int:
        return max((len(code) for code, _ in pairs), default=0)

    def flush() -> None:
        result.extend(f"{code.ljust(column(run))}  {comment}" for code, comment in run)
        run.clear()

    for line in lines:
        code, comment = without_comment(line), line[line.find("//") :] if "//" in line else ""
        if not (code and comment):
            flush()
            result.append(line)
            continue
        more = [*run, (code, comment)]
        if any(column(more) + 4 + len(one) > WIDTH for _, one in more):
            flush()
        run.append((code, comment))
    flush()
    return result


def option_texts(text: str) -> Dict[str, Dict[str, str]]:
    """Of each struct with a list_fields: what each member means and may hold."""
    options: Dict[str, Dict[str, str]] = {}
    for struct, body in re.findall(r"void list_fields\(Fields& field, (\w+)& \w+\) \{\n(.*?)^\}", text, re.M | re.S):
        found = re.findall(r'field\(\s*"(\w+)",\s*\w+\.(\w+),\s*"([^"]*)"(?:,\s*(.*?))?\);', body, re.S)
        if len(found) != body.count('field("'):
            raise ValueError(f"cannot read all of list_fields of {struct}")
        for name, member, meaning, allowed in found:
            values = f"; {allowed_text(allowed)}" if allowed else ""
            spelled = f'; "{name}" in config.json' if name != member else ""
            options.setdefault(struct, {})[member] = meaning + values + spelled
    return options


def allowed_text(allowed: str) -> str:
    name, inside = re.fullmatch(r"(\w+)\((.*)\)", allowed, re.S).groups()  # type: ignore[union-attr]
    if name == "or_zero":
        nested, meaning = re.fullmatch(r'(.*),\s*"(.*)"', inside, re.S).groups()  # type: ignore[union-attr]
        return f"{allowed_text(nested)}, or 0: {meaning}"
    numbers = [number.strip() for number in inside.split(",")]
    patterns = {
        "at_least": "at least {}",
        "above": "positive" if numbers[0] == "0" else "above {}",
        "within": "in [{}, {}]",
        "above_up_to": "in ({}, {}]",
        "between": "between {} and {}",
    }
    return patterns[name].format(*numbers)


def header(root: Path, path: str) -> Tuple[List[str], List[str]]:
    """The text of a header's entry, and the names it declares."""
    text = (root / path).read_text()
    top = [line for line in text.partition("#pragma once")[0].splitlines() if line.startswith("//")]
    lines = [*blocks("\n".join(line[2:].removeprefix(" ") for line in top), 2)]
    body = re.search(r"^namespace ovq::\w+ \{\n(.*)^\}  // namespace", text, re.M | re.S)
    if body is None:
        raise ValueError(f"{path} has no namespace")
    options, names = option_texts(text), []
    for paragraph in paragraphs(body.group(1).split("\n")):
        declared = [d for d in paragraph if d.lines and not d.internal]
        if path in ONLY:
            declared = [d for d in declared if d.name in ONLY[path]]
        if declared:
            lines += ["```cpp", *aligned([line for d in declared for line in shown(d, options)]), "```", ""]
            names += [d.name for d in declared if d.name]
    return lines, list(dict.fromkeys(names))


INTRODUCTION = [
    *wrapped(
        "The headers that a program includes, with their comments; [api-python.md](api-python.md) is the same for "
        "Python. `find_package(ovq)` gives the target `ovq::kernels`, with `COMPONENTS torch` also `ovq::ops`, "
        "`ovq::nn` and `ovq::models`. In shapes B is the batch, T time, H heads, Hq those of the queries, Hkv those of keys and "
        "values, and dk, dv, D are dims of a head. Bad input is a `std::invalid_argument` that names the op and the "
        "argument."
    ),
    "",
    *wrapped("`scripts/api-reference.py` writes this page from the source. Change comments, not the page."),
]


def page(root: Path) -> str:
    result = Page("C++ API", INTRODUCTION, one_line=False)
    for title, text, layer, stems in SECTIONS:
        result.section(title, [*wrapped(text), ""])
        for stem in stems.split():
            path = f"ovq/{layer}/{stem}.h"
            lines, names = header(root, path)
            result.entry(path, lines, ": " + ", ".join(f"`{name}`" for name in names), link=f"../{path}")
    return result.text()
