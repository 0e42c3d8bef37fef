"""Fails if an #include points up the table of layers in CONTRIBUTING.md, or if the table lacks a folder of sources.

Usage: includes_point_down.py ROOT
"""

import re
import sys
from pathlib import Path
from typing import Optional

SOURCES = (".h", ".cpp")


def layers_of(contributing: str) -> list[str]:
    """Folders from top to bottom; one that ends in /** includes all folders below it."""
    return re.findall(r"^\| `([a-z_/]+(?:/\*\*)?)/?` \|", contributing, re.MULTILINE)


def rank(folder: str, layers: list[str]) -> Optional[int]:
    """Index of a folder in the list; None if absent."""
    for number, layer in enumerate(layers):
        if folder == layer.rstrip("/") or (layer.endswith("/**") and f"{folder}/".startswith(layer[:-2])):
            return number
    return None


def wrong_includes(root: Path, layers: list[str]) -> list[str]:
    errors = []
    roots = {layer.split("/")[0] for layer in layers}
    include = re.compile(r'\s*#include ["<]((?:%s)(?:/[^">/]+)*)/[^">/]+[">]' % "|".join(roots))
    for path in sorted(path for name in roots for path in (root / name).rglob("*")):
        name = path.relative_to(root)
        own = rank(str(name.parent), layers)
        if path.suffix not in SOURCES:
            continue
        if own is None:
            errors.append(f"{name}: {name.parent}/ is not in CONTRIBUTING's table of layers")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = include.match(line)
            if not match:
                continue
            other = rank(match[1], layers)
            if other is None and (root / match[1]).is_dir():
                errors.append(f"{name}:{number}: {match[1]}/ is not in CONTRIBUTING's table of layers")
            elif other is not None and other < own:
                errors.append(f"{name}:{number}: {name.parent}/ includes from {match[1]}/, which lies above it")
    return errors


def main() -> None:
    root = Path(sys.argv[1])
    layers = layers_of((root / "CONTRIBUTING.md").read_text())
    if len(layers) < 10:
        sys.exit(f"found only the layers {layers} in CONTRIBUTING.md")
    upside_down = wrong_includes(root, layers[::-1])
    if not upside_down:
        sys.exit("the check finds nothing even with the layers upside down: it does not work")
    errors = wrong_includes(root, layers)
    if errors:
        sys.exit("\n".join(errors))
    print(f"{len(layers)} layers; every #include points down or stays")


main()
