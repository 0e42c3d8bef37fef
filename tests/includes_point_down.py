"""Fails if an #include points up the table of layers in CONTRIBUTING.md, or a folder of sources is missing in it.

Usage: includes_point_down.py ROOT
"""

import re
import sys
from pathlib import Path

SOURCES = (".h", ".cpp")


def layers_of(contributing: str) -> list[str]:
    """Folders from top to bottom."""
    return re.findall(r"^\| `([a-z_/]+)/` \|", contributing, re.MULTILINE)


def wrong_includes(root: Path, layers: list[str]) -> list[str]:
    errors = []
    for layer in {layer.split("/")[0] for layer in layers}:
        for path in sorted((root / layer).rglob("*")):
            name = path.relative_to(root)
            if path.suffix not in SOURCES:
                continue
            own = str(name.parent)
            if own not in layers:
                errors.append(f"{name}: {own}/ is not in CONTRIBUTING's table of layers")
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = re.match(r'\s*#include "((?:%s)/[^"]*)/[^/"]+"' % "|".join({x.split("/")[0] for x in layers}), line)
                if not match or match[1] not in layers:
                    continue
                if layers.index(match[1]) < layers.index(own):
                    errors.append(f"{name}:{number}: {own}/ includes from {match[1]}/, which lies above it")
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
