"""Fails if a relative link in a Markdown file is broken, or if the C++ of README.md differs from the example.

Usage: markdown.py ROOT
       markdown.py --run FILE     executes the Python blocks of a Markdown file, one after the other
"""

import re
import sys
from pathlib import Path


def blocks(markdown: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)


def broken_links(root: Path) -> list[str]:
    errors = []
    for path in [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            target = link.split("#")[0]
            if target and "://" not in target and not (path.parent / target).exists():
                errors.append(f"{path.relative_to(root)}: {link} does not exist")
    return errors


def lines_not_in(shown: str, example: Path) -> list[str]:
    """Lines of a shortened copy that are not in the example in the same order; ignores indentation."""
    lines = iter([line.strip() for line in example.read_text().splitlines()])
    return [
        f"README.md shows a line that {example.name} does not have there: {line}"
        for line in shown.splitlines()
        if line.strip() and line.strip() not in lines  # `in` moves the iterator on
    ]


def main() -> int:
    if sys.argv[1] == "--run":
        names: dict = {}
        for block in blocks(Path(sys.argv[2]).read_text(), "python"):
            exec(block, names)
        return 0
    root = Path(sys.argv[1])
    errors = broken_links(root)
    shown = blocks((root / "README.md").read_text(), "cpp")
    if len(shown) != 1:
        errors.append(f"README.md has {len(shown)} blocks of C++; expected 1")
    for block in shown:
        errors += lines_not_in(block, root / "examples/cpp/stream.cpp")
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
