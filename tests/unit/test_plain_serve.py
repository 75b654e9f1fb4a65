"""`kafkad serve` reads plain command lines without click: as click reads them, or not at all."""

import random

import pytest

from kafkad.cli import serve
from kafkad.cli.serving import parse_overrides, plain

WORDS = [
    "--data-dir", "--listen", "--workers", "--override", "--log-level", "--help", "-h", "--", "-", "",
    "--data", "--data-dir=d", "--workers=2", "--workers=0", "--workers=x", "--override=a=b", "--override=a",
    "--override==b", "--log-level=debug", "--log-level=DEBUG", "--log-level=loud", "--listen=", "--listen=:1",
    "d", "127.0.0.1:0", "4", "65", " 4", "4.0", "٤", "a=b", "a=", "=b", "info", "given", "missing", "folder",
]  # fmt: skip


def as_click_reads(arguments, environment, monkeypatch):
    """The arguments of `serve_node`, or None if click refuses them or shows its help."""
    found = []
    monkeypatch.setattr(serve, "serve_node", lambda *given: found.append(given))
    monkeypatch.setattr("os.environ", environment)
    try:
        serve.command.main(list(arguments), "serve", standalone_mode=False)
    except Exception:
        return None
    names = ("properties", "data_dir", "listen", "workers", "override", "log_level")
    return dict(zip(names, found[0], strict=True)) if found else None


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["given"],
        ["--data-dir", "d", "--listen", "127.0.0.1:0"],
        ["--data-dir=d", "--workers=4", "--log-level=error"],
        ["given", "--override", "a=b", "--override", "c=d=e", "--workers", "2"],
        ["--override", "a=", "given"],
    ],
)
def test_a_plain_command_line_needs_no_click(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given").write_text("")
    found = plain(arguments, {})
    assert found is not None
    assert found == as_click_reads(arguments, {}, monkeypatch)


def test_whatever_is_read_without_click_is_read_as_click_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given").write_text("")
    (tmp_path / "folder").mkdir()
    chance, read = random.Random(5), 0
    for _ in range(3000):
        arguments = chance.choices(WORDS, k=chance.randrange(6))
        environment = {"KAFKAD_WORKERS": chance.choice(["", "3", "0", "x"])} if chance.random() < 0.3 else {}
        found = plain(arguments, environment)
        if found is not None:
            read += 1
            assert found == as_click_reads(arguments, environment, monkeypatch), arguments
    assert read > 100


def test_an_override_is_a_key_and_a_value():
    assert parse_overrides(["a=1", " b = x=y ", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}
    for wrong in ("a", "=b", " =b", ""):
        with pytest.raises(ValueError, match="not of the form key=value"):
            parse_overrides([wrong])
