#!/usr/bin/python3
"""Writes docs/api-python.md and docs/api-cpp.md from the docstrings of python/ovq and the comments of the C++ headers.

Reads text only: needs neither torch nor a build.

Usage: scripts/api-reference.py            writes the pages
       scripts/api-reference.py --check    exit 1 if they are not what it would write
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts" / "api"))

import cpp_page  # noqa: E402
import python_page  # noqa: E402

PAGES = {"docs/api-python.md": python_page.page, "docs/api-cpp.md": cpp_page.page}


def main() -> int:
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__)
        return 2
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / name, page(ROOT)
        if not path.is_file() or path.read_text() != text:
            stale.append(name)
            if not sys.argv[1:]:
                path.write_text(text)
    if not sys.argv[1:]:
        return 0
    if stale:
        print(f"out of date: {', '.join(stale)}; run scripts/api-reference.py and commit what it writes")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
