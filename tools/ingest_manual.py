"""Write the table of a pipeline file's keys into docs/ingest.md, from the code that reads them.

python tools/ingest_manual.py --write        without --write: exit code 1 if it is not up to date
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DOCUMENT = ROOT / "docs" / "ingest.md"
BEGIN, END = "<!-- keys -->\n", "<!-- /keys -->"


def table() -> str:
    from kafkad.ingest.pipeline import manual

    lines = ["| key | default | |", "|---|---|---|"]
    last = ""
    for section, key, default, help in manual():
        shown = f"`[{section}] {key}`" if section != last else f"`{key}`"
        value = f"`{default}`" if default else ""
        lines.append(f"| {shown} | {value} | {help.replace('|', chr(92) + '|')} |")
        last = section
    return "\n".join(lines) + "\n"


def written() -> str:
    before, rest = DOCUMENT.read_text().split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END, 1)[1]


def main() -> int:
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(written())
        return 0
    return int(DOCUMENT.read_text() != written())


if __name__ == "__main__":
    sys.exit(main())
