"""Fails if an #include points up the table of layers in CONTRIBUTING.md, or if the table lacks a folder of sources.

Usage: includes_point_down.py ROOT
"""

import re
import sys
from pathlib import Path
from typing import Optional

SOURCES = (".h", ".cpp")


def layers_of(contributing: str) -> list[str]:
    """Folders from top to bottom; one that ends in /** includes all folders below it, and /**/name* is its files of that
    name."""
    return re.findall(r"^\| `([a-z_/]+(?:/\*\*(?:/[a-z]+\*)?)?)/?` \|", contributing, re.MULTILINE)


def rank(file: str, layers: list[str]) -> Optional[int]:
    """Index in the list of the layer that a file belongs to; None if absent."""
    by_name = sorted(range(len(layers)), key=lambda number: "/**/" not in layers[number])
    return next((number for number in by_name if belongs(file, layers[number])), None)


def belongs(file: str, layer: str) -> bool:
    folder, name = file.rsplit("/", 1)
    if "/**/" in layer:
        root, pattern = layer.split("**/")
        parts = file[len(root) :].split("/")
        return file.startswith(root) and any(part.startswith(pattern.rstrip("*")) for part in parts)
    return folder == layer.rstrip("/") or (layer.endswith("/**") and f"{folder}/".startswith(layer[:-2]))


def wrong_includes(root: Path, layers: list[str]) -> list[str]:
    errors = []
    roots = {layer.split("/")[0] for layer in layers}
    include = re.compile(r'\s*#include ["<]((?:%s)(?:/[^">/]+)+)[">]' % "|".join(roots))
    for path in sorted(path for name in roots for path in (root / name).rglob("*")):
        name = path.relative_to(root)
        own = rank(str(name), layers)
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
            if other is None and (root / match[1]).is_file():
                errors.append(f"{name}:{number}: {match[1]} is not in CONTRIBUTING's table of layers")
            elif other is not None and other < own:
                errors.append(f"{name}:{number}: includes {match[1]}, which lies above it")
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
