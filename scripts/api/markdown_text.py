"""Comments and docstrings as Markdown."""

import re
import textwrap

WIDTH = 120
SPACE = "\0"  # inside of code spans, where lines must not break


def escaped(text: str) -> str:
    """Text with the characters that Markdown would take for markup escaped, except in code spans."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        part = re.sub(r"\*(?=\S)|(?<=\S)\*", r"\\*", parts[i])
        part = re.sub(r"(?<![A-Za-z0-9])_(?=\S)", r"\\_", part)
        parts[i] = re.sub(r"<(?=[A-Za-z/!])", r"\\<", part)
    return "".join(parts)


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Lines of a paragraph. No line begins like a list, a heading or a quotation."""
    whole = re.sub(r"`[^`]*`", lambda code: code.group().replace(" ", SPACE), text)
    lines = textwrap.wrap(whole, WIDTH - len(rest), break_long_words=False, break_on_hyphens=False)
    lines = [re.sub(r"^([-+*#>]|\d+(?=[.)]))(?=[ .)])", r"\\\1", line.replace(SPACE, " ")) for line in lines]
    return [(rest if i else first) + line for i, line in enumerate(lines)]


def blocks(text: str, formula_indent: int) -> list[str]:
    """Prose as paragraphs, and lines that are indented as code."""
    lines: list[str] = []
    prose: list[str] = []
    code: list[str] = []

    def flush() -> None:
        if prose:
            lines.extend([*wrapped(escaped(" ".join(prose))), ""])
            prose.clear()
        while code and not code[-1]:
            code.pop()
        if code:
            lines.extend(["```", *textwrap.dedent("\n".join(code)).splitlines(), "```", ""])
            code.clear()

    for line in text.splitlines():
        if line.startswith(" " * formula_indent):
            if prose:
                flush()
            code.append(line)
        elif not line.strip():
            if prose:
                flush()
            elif code:
                code.append("")
        else:
            if code:
                flush()
            prose.append(line.strip())
    flush()
    return lines


def slug(heading: str, taken: set[str]) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    anchor, number = plain, 0
    while anchor in taken:
        number += 1
        anchor = f"{plain}-{number}"
    taken.add(anchor)
    return anchor


class Page:
    """Sections with headings and a table of contents, a line for each section or for each entry."""

    def __init__(self, title: str, introduction: list[str], *, one_line: bool) -> None:
        self._one_line = one_line
        self._head = [f"# {title}", "", *introduction, "", "## Contents", ""]
        self._taken = {slug(title, set()), "contents"}
        self._contents: list[tuple[str, list[str]]] = []
        self._body: list[str] = []

    def section(self, title: str, text: list[str]) -> None:
        anchor = self._heading(2, title)
        self._contents.append((f"[{title}](#{anchor})", []))
        self._body += text

    def entry(self, heading: str, text: list[str], about: str = "", link: str = "") -> None:
        """A heading below that of the section, which the table of contents lists too."""
        anchor = self._heading(3, heading, link)
        self._contents[-1][1].append(f"[`{heading.replace('class ', '')}`](#{anchor})" + about)
        self._body += text

    def part(self, heading: str, text: list[str]) -> None:
        self._heading(4, heading)
        self._body += text

    def text(self) -> str:
        lines = list(self._head)
        for section, entries in self._contents:
            if self._one_line:
                lines += wrapped(f"{section}: " + " · ".join(entries), "- ", "  ")
            else:
                lines += [f"- {section}", *(line for entry in entries for line in wrapped(entry, "  - ", "    "))]
        lines += ["", *self._body]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"

    def _heading(self, level: int, heading: str, link: str = "") -> str:
        shown = heading if level == 2 else f"`{heading}`"
        self._body += ["#" * level + " " + (f"[{shown}]({link})" if link else shown), ""]
        return slug(heading, self._taken)
