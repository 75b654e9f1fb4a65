"""What the source must keep to: the layers, the purity of the middle, the shape of the tree, the map.

Reads .py by its syntax tree and .pyx and .pxd by their import lines. Imports inside functions and under
TYPE_CHECKING count as well: a dependency is a dependency, whenever it is taken up.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.file_times import LONG

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kafkad"

sys.path.insert(0, str(ROOT / "tools"))
import architecture_map  # noqa: E402

# From the ground up. What stands on one line may import what stands above it, and itself.
LAYERS = [
    "_native",
    "_native.wire",
    "_native.shared",
    "_native.log",
    "_native.serving _native.values",
    "protocol",
    "clock metrics quota seldom",
    "config",
    "net",
    "log",
    "remote",
    "security",
    "metadata",
    "raft",
    "zookeeper",
    "replication",
    "coordinator",
    "controller",
    "api",
    "console",
    "server",
    "values",
    "client",
    "spark",
    "ingest",
    "cli",
    "__main__",
    "testing",
    "demo",
]
LEVEL = {name: level for level, line in enumerate(LAYERS) for name in line.split()}

# narrower than its place: the client library is used without a broker
ONLY = {
    "client": {"client", "protocol", "_native.wire"},
    "_native.values": {"_native.values", "_native.wire"},
    "values": {"values", "_native.values"},
}

# what such a layer takes of another one, and no more: modules without a broker's configuration in them
ALSO = {
    "client": (
        "kafkad.net.https",
        "kafkad.security.client_kerberos",
        "kafkad.security.client_oauth",
        "kafkad.security.client_sasl",
        "kafkad.security.client_tls",
        "kafkad.security.jaas",
        "kafkad.security.jwt",
        "kafkad.security.stores",
    )
}

# what the broker does without
APART = {
    "_native.values": {"_native.values", "values", "spark", "ingest", "demo"},
    "values": {"values", "client", "spark", "ingest", "demo"},
}

# Time, chance, network and disk come in as arguments, so that a seed replays everything.
PURE = {"protocol", "metadata", "raft", "coordinator", "controller", "replication"}
IMPURE_FILES = {"replication/fetchers.py"}
WORLD = {"time", "socket", "os", "random", "threading", "asyncio"}

# Waiting is explicit: everywhere else a function runs to its end.
MAY_WAIT = {"api", "net", "server", "client", "console", "cli", "testing", "spark", "ingest", "demo"}

DRAWERS = {"util", "utils", "common", "helpers", "helper", "misc", "manager"}

SOURCES = sorted(
    path
    for kind in ("py", "pyx", "pxd")
    for path in PACKAGE.rglob(f"*.{kind}")
    if "__pycache__" not in path.parts
)


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def layer_of(path: Path) -> str | None:
    """`log` for kafkad/log/segment.py, `_native.wire` for kafkad/_native/wire/batch.pyx, `clock` for
    kafkad/clock.py, None for kafkad/__init__.py."""
    parts = path.relative_to(PACKAGE).parts
    if len(parts) > 2 and parts[0] == "_native":
        return f"_native.{parts[1]}"
    if len(parts) > 1:
        return parts[0]
    return None if path.stem == "__init__" else path.stem


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of each module that a file imports, `from a import b` as a.b."""
    package = ["kafkad", *path.relative_to(PACKAGE).parts[:-1]]
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        return
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if found := re.match(r"\s*from\s+(\.*)([\w.]*)\s+c?import\s+\(?\s*([\w, *]*)", line):
            dots, module, names = found.groups()
            base = package[: len(package) - len(dots) + 1] if dots else []
            module = ".".join([*base, *([module] if module else [])])
            yield from ((number, f"{module}.{name.split(' as ')[0].strip()}") for name in names.split(","))
        elif found := re.match(r"\s*c?import\s+([\w., ]+)", line):
            yield from ((number, name.split(" as ")[0].strip()) for name in found[1].split(","))


def target_of(module: str) -> str | None:
    """The layer that a dotted name lies in; None if it is not ours, or is the bare package."""
    parts = module.split(".")
    if parts[0] != "kafkad" or len(parts) == 1 or parts[1] == "__version__":
        return None
    if parts[1] == "_native" and len(parts) > 2 and f"_native.{parts[2]}" in LEVEL:
        return f"_native.{parts[2]}"
    return parts[1]


def test_every_folder_has_its_place_in_the_layers():
    unplaced = {layer for path in SOURCES if (layer := layer_of(path)) and layer not in LEVEL}
    assert not unplaced, f"add {sorted(unplaced)} to LAYERS, where imports go down only"


def test_imports_go_down_only():
    wrong = []
    for path in SOURCES:
        layer = layer_of(path)
        if layer not in LEVEL:
            continue
        for line, module in imports_of(path):
            target = target_of(module)
            if target is None or target == layer:
                continue
            if target not in LEVEL:
                wrong.append(f"{name_of(path)}:{line} imports {module}, which is nowhere in the layers")
            elif LEVEL[target] >= LEVEL[layer]:
                wrong.append(f"{name_of(path)}:{line} imports {module}: {layer} is not above {target}")
            elif layer in ONLY and target not in ONLY[layer] and not module.startswith(ALSO.get(layer, ())):
                wrong.append(f"{name_of(path)}:{line} imports {module}, and {layer} takes only {ONLY[layer]}")
            elif target in APART and layer not in APART[target]:
                wrong.append(f"{name_of(path)}:{line} imports {module}, which only {APART[target]} may")
    assert not wrong, "\n" + "\n".join(wrong)


def test_values_and_the_client_know_no_pyspark():
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in SOURCES
        if layer_of(path) in {"values", "client", "_native.values"}
        for line, module in imports_of(path)
        if module.split(".")[0] in {"pyspark", "pyspark_kafkad"}
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_pure_layers_know_no_time_chance_network_or_disk():
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in SOURCES
        if layer_of(path) in PURE and name_of(path) not in IMPURE_FILES
        for line, module in imports_of(path)
        if module.split(".")[0] in WORLD
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_only_the_edges_wait():
    wrong = [
        f"{name_of(path)}:{node.lineno} async def {node.name}"
        for path in SOURCES
        if path.suffix == ".py" and layer_of(path) not in MAY_WAIT and name_of(path) not in IMPURE_FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AsyncFunctionDef)
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_code_is_deeper_than_one_folder():
    """kafkad/<folder>/<file>; the natives have one floor more, kafkad/_native/<room>/<file>."""
    for path in SOURCES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] == "_native":
            assert len(parts) == 3 or parts[1:] == ("__init__.py",), name_of(path)
        else:
            assert len(parts) <= 2, name_of(path)


def test_every_file_opens_with_its_idea():
    silent = []
    for path in SOURCES:
        text = path.read_text()
        if not text.strip():
            assert path.name == "__init__.py", f"{name_of(path)} is empty"
        elif path.suffix == ".py":
            if not ast.get_docstring(ast.parse(text)):
                silent.append(name_of(path))
        elif not re.match(r'(\s*#.*\n)*\s*(r?"""|#)', text):
            silent.append(name_of(path))
    assert not silent, f"no docstring at the top of {silent}"


CIMPORT = re.compile(r"^from [\w.]+ cimport (\(.*?\)|[^\n(]*)$", re.DOTALL | re.MULTILINE)


def unused_cimports(text: str) -> list[str]:
    """ruff does not read Cython: names that stand in a file's cimports and nowhere else."""
    names = [
        name.split()[-1]
        for found in CIMPORT.finditer(text)
        for name in re.split(r"[,()\n]+", found[1])
        if name.strip()
    ]
    return [name for name in names if len(re.findall(rf"\b{name}\b", text)) < 2]


def test_what_is_cimported_is_used():
    found = {name_of(path): unused_cimports(path.read_text()) for path in SOURCES if path.suffix == ".pyx"}
    assert not {name: names for name, names in found.items() if names}
    assert unused_cimports("from a cimport b, c\nfrom d cimport (\n    e,\n    f as g)\nb e\n") == ["c", "g"]


def test_what_has_a_long_form_runs_it_in_make_soak():
    """`make soak` is `pytest -m soak`: a test that reads KAFKAD_SOAK and has no mark stays short there."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        long = re.search(r"KAFKAD_SOAK\"|\bSOAK\b|\b(rounds|seeds)\(\d", text)
        assert not long or "pytest.mark.soak" in text or path.name == "test_source.py", path.name


def test_no_drawer_is_called_utils():
    assert not [name_of(path) for path in SOURCES if path.stem in DRAWERS]
    assert not [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name in DRAWERS]


def test_the_map_is_the_tree():
    document = architecture_map.DOCUMENT
    block = architecture_map.FENCE.search(document.read_text())
    assert block, "docs/MAP.md has no block that opens with ```map"
    listed, there = set(architecture_map.parse(block[1])), set(architecture_map.tree())
    assert listed == there, (
        f"gone: {sorted(listed - there)}; not on the map: {sorted(there - listed)};"
        " python tools/architecture_map.py --write brings it up to date"
    )


def missing_places(text: str) -> list[str]:
    """Paths in backticks, relative to kafkad/ or to the repository, that name neither a folder nor a file."""
    named = set(re.findall(r"`((?:\w+/)+[\w.]*)`", text))
    return sorted(
        name
        for name in named
        if not any(
            (base / name).exists() or any((base / name).parent.glob(f"{(base / name).name}.*"))
            for base in (PACKAGE, ROOT)
        )
    )


def test_architecture_md_names_places_that_exist():
    assert missing_places("`log/log` `_native/wire` `tests/power.py` `log/gone`") == ["log/gone"]
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert "`_native/serving/reactor`" in text and not missing_places(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from kafkad.log import segment", ["kafkad.log.segment"]),
        ("import kafkad.api.table as t, os", ["kafkad.api.table", "os"]),
        (
            "from .primitives cimport Cursor, varint",
            ["kafkad._native.wire.primitives.Cursor", "kafkad._native.wire.primitives.varint"],
        ),
        ("cimport cython", ["cython"]),
        ("    from kafkad.net cimport listener", ["kafkad.net.listener"]),
    ],
)
def test_the_reader_of_cython_imports(text, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    path = tmp_path / "_native" / "wire" / "x.pyx"
    path.parent.mkdir(parents=True)
    path.write_text(text + "\n")
    assert [module for _, module in imports_of(path)] == expected


def named_by(path: Path, modules: set[str]) -> set[str]:
    """The modules of kafkad that a file names in any import: at its top, in a function, for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                found.add(full if full in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & modules


def test_no_two_modules_of_a_folder_need_each_other():
    """Not even by way of others, or for types: each can be read, tested and moved without its users."""
    paths = {".".join(path.with_suffix("").relative_to(ROOT).parts): path for path in PACKAGE.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    needs = {name: named_by(path, set(paths)) - {name} for name, path in paths.items()}
    inside = {name: {it for it in needs[name] if paths[it].parent == paths[name].parent} for name in needs}
    while free := {name for name, wanted in inside.items() if not wanted}:
        inside = {name: wanted - free for name, wanted in inside.items() if name not in free}
    assert not inside, "these are in a circle, or need one that is"


LINES_MAX = 900


def test_a_file_is_short_or_says_why():
    """Above 900 lines its docstring has a sentence that begins with "Over 900 lines:"."""
    files = [
        path
        for folder in ("kafkad", "tests", "bench", "tools")
        for pattern in ("*.py", "*.pyx", "*.pxd", "*.h")
        for path in (ROOT / folder).rglob(pattern)
    ]
    long = {path: path.read_text() for path in files if path.read_text().count("\n") > LINES_MAX}
    assert not [str(path) for path, text in long.items() if "Over 900 lines:" not in text.split('"""')[1]]
    assert all(
        "Over 900 lines:" not in path.read_text() for path in set(files) - set(long) - {Path(__file__)}
    )


def test_the_long_test_files_that_begin_first_exist():
    assert set(LONG) <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


def test_the_natives_have_one_table_of_error_codes():
    table = dict(
        re.findall(r"^    ([A-Z_]+) = (-?\d+)$", (PACKAGE / "_native/wire/errors.pxd").read_text(), re.M)
    )
    codes = dict(
        re.findall(r"^([A-Z_]+): Final = (-?\d+)", (PACKAGE / "protocol/errors.py").read_text(), re.M)
    )
    assert len(table) > 20 and table.items() <= codes.items()
    for path in (PACKAGE / "_native").rglob("*.p[yx][xd]"):
        if path.name != "errors.pxd":
            own = re.findall(r"^    ([A-Z_]+) = (-?\d+)", path.read_text(), re.M)
            assert not table.items() & set(own) - {("NONE", "0")}, path
