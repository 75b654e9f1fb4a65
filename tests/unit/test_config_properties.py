"""Java's .properties files. What is expected was printed by java.util.Properties."""

from pathlib import Path

import pytest

from kafkad.config.properties import parse_properties, read_properties

ODD = r"""# comment \
! another
a=1
  b : 2  
c 3
d   =   4\
    5
e:=6
f\ g\:h\=i = j
k
l=
m=\u0041\u00e9\ud83d\ude00
n=tab\there\nline\q
   # not a value
o=x\\
p=y\\\
  z
q=1
q=2
=novalue
r\
  s=t
u = a=b:c
w=trailing  
x=\
# not a comment
y==1
z	:	tab
bb=1\

cc=2
dd ee = ff
gg\
= hh
ii\  : jj
"""  # noqa: W291


def test_odd_lines_mean_what_java_reads() -> None:
    assert parse_properties(ODD) == {
        "": "novalue",
        "a": "1",
        "b": "2  ",
        "bb": "1",
        "c": "3",
        "cc": "2",
        "d": "45",
        "dd": "ee = ff",
        "e": "=6",
        "f g:h=i": "j",
        "gg": "hh",
        "ii ": "jj",
        "k": "",
        "l": "",
        "m": "A\u00e9\N{GRINNING FACE}",
        "n": "tab\there\nlineq",
        "o": "x\\",
        "p": "y\\z",
        "q": "2",
        "rs": "t",
        "u": "a=b:c",
        "w": "trailing  ",
        "x": "# not a comment",
        "y": "=1",
        "z": "tab",
    }


def test_lines_end_in_three_ways_and_bytes_are_latin_1(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(b"v=caf\xe9\r\nv2=a\\\r\n  b\rv3=c\naa=last\\")
    assert read_properties(file) == {"v": "caf\xe9", "v2": "ab", "v3": "c", "aa": "last"}


def test_nothing_is_nothing() -> None:
    assert parse_properties("") == {}
    assert parse_properties("\n \t\n#x\n!y") == {}


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\uXYZW", r"\u=1"])
def test_a_malformed_escape_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="Malformed"):
        parse_properties(text)


def test_a_lone_surrogate_does_not_break_the_file() -> None:
    assert list(parse_properties(r"a=\ud83dx")) == ["a"]
