"""Build the map of the source, docs/MAP.md: every folder and file with the first sentence of its docstring.

    python tools/architecture_map.py            prints the map
    python tools/architecture_map.py --write    writes it into docs/MAP.md, between ```map and ```

tests/test_source.py compares the paths in the map with the tree, so it fails if a new file is missing there.
Only this tool updates the sentences.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "MAP.md"
FENCE = re.compile(r"^```map\n(.*?)^```$", re.MULTILINE | re.DOTALL)

TREES = ("kafkad", "pyspark_kafkad", "bench", "tools")
SOURCES = (".py", ".pyx", ".c", ".sh")
HEADERS = (".pxd", ".h")
SENTENCE_LENGTH = 96


def tree(root: Path = ROOT) -> list[str]:
    """Return folders (with a final /) and source files, in the order of the map, with headers that have no
    source of the same name."""
    found: list[str] = []
    for top in TREES:
        if (root / top).is_dir():
            _walk(root / top, root, found)
    return found


def _walk(folder: Path, root: Path, found: list[str]) -> None:
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_source(path)]
    folders = [path for path in sorted(folder.iterdir()) if path.is_dir() and _holds_source(path)]
    if not files and not folders:
        return
    found.append(f"{folder.relative_to(root)}/")
    found.extend(str(path.relative_to(root)) for path in files)
    for path in folders:
        _walk(path, root, found)


def _holds_source(folder: Path) -> bool:
    hidden = folder.name.startswith((".", "__"))
    return not hidden and any(map(_is_source, folder.rglob("*")))


def _is_source(path: Path) -> bool:
    if path.name in ("__init__.py", "__main__.py") and not path.read_text().strip():
        return False
    if path.suffix == ".c":
        return not path.with_suffix(".pyx").exists()  # otherwise Cython made it
    if path.suffix in HEADERS:
        return not path.with_suffix(".pyx").exists()
    return path.suffix in SOURCES


def first_sentence(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        opening = re.search(r'"""(.*?)"""|/\*(.*?)\*/|((?:^[ ]*#(?!!).*\n)+)', text, re.DOTALL | re.MULTILINE)
        text = next((part for part in opening.groups() if part), "") if opening else ""
        text = re.sub(r"^[ ]*[#*]+ ?", "", text, flags=re.MULTILINE)
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?]) ", paragraph)[0]
    if len(sentence) > SENTENCE_LENGTH:
        sentence = sentence[:SENTENCE_LENGTH].rsplit(" ", 1)[0] + " ..."
    return sentence


def render(root: Path = ROOT) -> str:
    lines = []
    for entry in tree(root):
        depth = entry.rstrip("/").count("/")
        name = entry.rstrip("/").rsplit("/", 1)[-1]
        if entry.endswith("/"):
            lines.append(f"{'  ' * depth}{name}/")
        else:
            lines.append(f"{'  ' * depth}{name:<24} {first_sentence(root / entry)}".rstrip())
    return "\n".join(lines) + "\n"


def parse(block: str) -> list[str]:
    """Return the paths in a map, as `tree` does."""
    paths: list[str] = []
    folders: list[str] = []
    for line in block.splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders = folders[:depth]
        paths.append("".join(folders) + name)
        if name.endswith("/"):
            folders.append(name)
    return paths


def main(arguments: list[str]) -> int:
    if arguments != ["--write"]:
        print(render(), end="")
        return 0
    text = DOCUMENT.read_text()
    if not FENCE.search(text):
        print(f"{DOCUMENT.relative_to(ROOT)} has no block that opens with ```map.", file=sys.stderr)
        return 1
    DOCUMENT.write_text(FENCE.sub(lambda _: f"```map\n{render()}```", text, count=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
