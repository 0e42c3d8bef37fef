#!/usr/bin/python3
"""Makes a corpus of source code from Debian packages: DIR/train and DIR/valid, a file of code each, for
`ovq reproduce code --data DIR`.

Packages are downloaded by apt (never installed) as the machine's sources serve them; their versions are in
DIR/sources.json, and results carry them. Files of 16 kB to 256 kB count: shorter ones are no long context, longer ones
are mostly tables. No content is there twice, and whole packages are held out for the test. Names begin with a hash of
the content, so that the first windows of a test are from all packages held out.

Usage: scripts/code-corpus.py DIR [--language python|c]      (downloads 55 MB for python, 140 MB for c)
       scripts/code-corpus.py DIR --installed                (no download: the standard library of this Python)
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

MIN_BYTES, MAX_BYTES = 16_000, 256_000
PYTHON_TRAIN = """libpython3.11-stdlib libpython3.11-minimal python3-django python3-matplotlib python3-networkx
python3-numpy python3-pandas python3-scipy python3-sqlalchemy python3-sympy python3-torch python3-twisted""".split()
PYTHON_TEST = "python3-docutils python3-jedi python3-mpmath python3-psutil python3-trio".split()
STDLIB_TEST = "asyncio/ email/ http/ multiprocessing/ xml/".split()
# Of the kernel: what trains, and in it what is held out.
C_PACKAGE = "linux-source-6.1"
C_TRAIN = "block crypto fs ipc kernel lib mm net security".split()
C_TEST = "fs/btrfs/ fs/ubifs/ kernel/trace/ net/sctp/ net/wireless/".split()


def download(package, directory):
    """The package's files below `directory`, and its version."""
    subprocess.run(["apt-get", "download", "-q", package], cwd=directory, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    (archive,) = directory.glob("*.deb")
    version = subprocess.run(["dpkg-deb", "-f", archive, "Version"], check=True, capture_output=True, text=True)
    subprocess.run(["dpkg-deb", "-x", archive, directory], check=True)
    archive.unlink()
    return version.stdout.strip()


def texts(directory, suffix):
    """Name below `directory` and text of every file that counts, in order."""
    for path in sorted(directory.rglob("*" + suffix)):
        if path.is_symlink() or not path.is_file() or not MIN_BYTES <= path.stat().st_size <= MAX_BYTES:
            continue
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            yield path.relative_to(directory).as_posix(), text


def python_sources():
    """(part, package, version, texts) of every package; those of the test first."""
    for part, packages in (("valid", PYTHON_TEST), ("train", PYTHON_TRAIN)):
        for package in packages:
            with tempfile.TemporaryDirectory() as name:
                directory = Path(name)
                version = download(package, directory)
                yield part, package, version, list(texts(directory, ".py"))


def installed_sources():
    directory = Path(sysconfig.get_path("stdlib"))
    everything = [(path, text) for path, text in texts(directory, ".py") if "-packages/" not in path]
    yield from split("standard-library", sysconfig.get_python_version(), everything, STDLIB_TEST)


def c_sources():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        version = download(C_PACKAGE, directory)
        (archive,) = directory.rglob("*.tar.xz")
        with tarfile.open(archive) as tar:
            for member in tar:
                path = member.name.partition("/")[2]
                if member.isfile() and path.endswith(".c") and path.split("/")[0] in C_TRAIN:
                    member.name = path
                    tar.extract(member, directory / "tree")
        everything = list(texts(directory / "tree", ".c"))
    yield from split(C_PACKAGE, version, everything, C_TEST)


def split(package, version, everything, held_out):
    for part, wanted in (("valid", True), ("train", False)):
        yield part, package, version, [(path, text) for path, text in everything
                                       if path.startswith(tuple(held_out)) == wanted]


def file_name(path, package, digest):
    short = re.sub(r"^(usr/lib/python3(\.11)?/(dist-packages/)?|usr/(lib|share)/)", "", path)
    return f"{digest[:8]}-{package}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', short)[-120:]}.txt"


def write_corpus(directory, sources):
    seen = set()
    for part in ("train", "valid"):
        (directory / part).mkdir(parents=True)
    for part, package, version, found in sources:
        entry = {"package": package, "version": version, "part": part, "files": 0, "bytes": 0}
        for path, text in found:
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest in seen:
                continue
            seen.add(digest)
            (directory / part / file_name(path, package, digest)).write_bytes(text.encode())
            entry["files"] += 1
            entry["bytes"] += len(text.encode())
        yield entry


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", type=Path, help="must not be there")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--language", choices=["python", "c"], default="python")
    source.add_argument("--installed", action="store_true", help="the standard library of this Python, no packages")
    arguments = parser.parse_args()
    if arguments.directory.exists():
        sys.exit(f"code-corpus: {arguments.directory} is there; remove it or name another")
    if not arguments.installed and not shutil.which("apt-get"):
        sys.exit("code-corpus: there is no apt-get; the packages are Debian's")
    unfinished = arguments.directory.with_name(arguments.directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    sources, totals = {"train": {}, "valid": {}}, {"train": 0, "valid": 0}
    try:
        chosen = installed_sources if arguments.installed else python_sources if arguments.language == "python" else c_sources
        for entry in write_corpus(unfinished, chosen()):
            print(f"{entry['part']}: {entry['package']} {entry['version']}: {entry['files']} files, "
                  f"{entry['bytes'] / 1e6:.2f} MB", flush=True)
            sources[entry["part"]][entry["package"]] = entry["version"]
            totals[entry["part"]] += entry["bytes"]
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        sys.exit(f"code-corpus: {command} failed; packages are named as in Debian 12: run apt-get update there first")
    (unfinished / "sources.json").write_text(json.dumps(sources, indent=1) + "\n")
    os.rename(unfinished, arguments.directory)
    for part, total in totals.items():
        print(f"{part}: {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
