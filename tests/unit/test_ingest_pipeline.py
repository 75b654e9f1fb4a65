"""The pipeline file: what it means, and a sentence with its line for everything that is wrong with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from kafkad.ingest.backlog import source_options
from kafkad.ingest.pipeline import SECTIONS, Source, manual
from kafkad.ingest.pipeline_file import PipelineError, parse
from kafkad.ingest.pipeline_values import duration, size
from kafkad.ingest.toml_lines import key_lines

WHOLE = """
name = "flights"

[source]
bootstrap = "127.0.0.1:9092"
topics = ["flights", "late-flights"]
max_bytes = "64 MB"
kafka.isolation.level = "read_committed"

[decode]
format = "json"
schema = '''
year INT,   # not a comment: part of the text
[day] INT
'''
columns = [
    "year",  # a comment, with a ] in it
    "month",
]

[sink]
path = "table"
partition_by = "month"

[trigger]
interval = "1 minute"

[spark.conf]
"spark.driver.memory" = "1g"
"""


def read(text, tmp_path=Path("/nowhere"), overrides=(), **environ):
    return parse(text, tmp_path / "p.toml", environ, overrides)


def mistakes(text, **given):
    with pytest.raises(PipelineError) as wrong:
        read(text, **given)
    return wrong.value.mistakes


def line(text, part):
    return text[: text.index(part)].count("\n") + 1


def test_a_whole_file_is_read():
    pipeline = read(WHOLE)
    assert pipeline.name == "flights"
    assert pipeline.source.topics == ("flights", "late-flights")
    assert pipeline.source.max_bytes == 64 << 20
    assert pipeline.source.kafka == {"isolation.level": "read_committed"}
    assert pipeline.decode.columns == ("year", "month")
    assert pipeline.sink.path == "/nowhere/table"
    assert pipeline.sink.partition_by == ("month",)
    assert not pipeline.trigger.available_now
    assert pipeline.trigger.interval == 60
    assert pipeline.spark.conf == {"spark.driver.memory": "1g"}


def test_every_key_knows_its_line_past_comments_and_long_texts():
    lines = key_lines(WHOLE)
    for path, part in {
        ("name",): "name =",
        ("source", "kafka", "isolation", "level"): "kafka.iso",
        ("decode", "schema"): "schema =",
        ("decode", "columns"): "columns =",
        ("sink",): "[sink]",
        ("sink", "partition_by"): "partition_by",
        ("spark", "conf", "spark.driver.memory"): '"spark.driver.memory"',
    }.items():
        assert lines[path] == line(WHOLE, part), path


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("max_bytes =", "max_byte =", "is no key of [source]; did you mean max_bytes?"),
        ("[sink]", "[sinc]", "did you mean sink?"),
        ('"json"', '"jsn"', "did you mean json?"),
        ('"64 MB"', '"64 parsecs"', "is not a size"),
        ('"64 MB"', '"0 MB"', "is not a size"),
        ('"1 minute"', '"soon"', "is not a time with its unit"),
        ('["flights", "late-flights"]', "[]", "is not a list of texts"),
        ('["flights", "late-flights"]', '["a", "a"]', "names nothing twice"),
        ('["flights", "late-flights"]', '["a b"]', "a name is 1 to 249"),
        ("kafka.isolation.level", "kafka.bootstrap.servers", "say bootstrap"),
        ('"spark.driver.memory"', '"driver.memory"', "did you mean spark.driver.memory?"),
        ('"1 minute"', '"1 minute"\navailable_now = true', "exclude each other"),
        ('path = "table"', 'table = "a.b"', "goes with type iceberg only"),
        ('format = "json"', 'format = "json"\noptions.sepp = ";"', "did you mean sep?"),
        ('format = "json"', 'format = "json"\noptions.messageName = "m"', "say [decode] message"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(old, new, said):
    text = WHOLE.replace(old, new)
    found = [sentence for sentence in mistakes(text) if said in sentence]
    assert len(found) == 1, mistakes(text)
    assert found[0].startswith(f"p.toml:{line(text, new.splitlines()[-1])}: ")
    assert "\n" not in found[0]


def test_all_mistakes_are_told_at_once():
    text = WHOLE.replace("max_bytes", "max_byte").replace('"json"', '"jsn"').replace("1 minute", "soon")
    assert len(mistakes(text)) == 3


def test_what_is_not_toml_has_its_line():
    assert mistakes("a = 1\nb = = 2\n")[0].startswith("p.toml:2: this is not TOML")
    assert mistakes("a = 1\nb = '''\n")[0].startswith("p.toml:")


def test_what_is_missing_is_said():
    said = " ".join(mistakes(""))
    for part in ("bootstrap", "topics or pattern", "[sink]"):
        assert part in said


def test_secrets_come_from_the_environment_and_are_never_shown():
    text = WHOLE.replace('kafka.isolation.level = "read_committed"', 'kafka.sasl.password = "${PW}"')
    pipeline = read(text, PW="hush")
    assert pipeline.source.kafka == {"sasl.password": "hush"}
    assert "hush" not in repr(pipeline)
    assert ("source.kafka", "sasl.password=${PW}", "p.toml:8, environment") in pipeline.effective()
    assert "PW}, which the environment does not have" in mistakes(text)[0]
    plain = read(text.replace("${PW}", "hush"))
    assert "hush" not in repr(plain.effective())
    wrong = mistakes(text.replace('"${PW}"', '"${PW}"\nmax_rows = "${PW}"'), PW="hush")
    assert "hush" not in repr(wrong)


def test_a_dollar_can_be_meant():
    assert read(WHOLE.replace('name = "flights"', 'name = "$${x}"')).name == "${x}"


def test_the_command_line_wins_and_says_so():
    pipeline = read(
        WHOLE, overrides=["sink.target_file_mb=64", "source.kafka.fetch.max.bytes=9", "sink.path=x"]
    )
    assert pipeline.sink.target_file_mb == 64
    assert pipeline.source.kafka["fetch.max.bytes"] == "9"
    assert pipeline.sink.path == "/nowhere/x"
    assert ("sink.target_file_mb", "64", "--set") in pipeline.effective()
    assert "section.key=value" in mistakes(WHOLE, overrides=["nonsense"])[0]


def test_a_dead_letter_table_sets_the_policy():
    assert read(WHOLE + '[dlq]\npath = "bad"\n').decode.bad_records == "dlq"


def test_dead_letters_lie_in_the_table_unless_told_otherwise():
    text = WHOLE.replace('format = "json"', 'format = "json"\nbad_records = "dlq"')
    pipeline = read(text)
    assert pipeline.dlq.path is None
    assert ("dlq.path", "/nowhere/table/_dlq", "default") in pipeline.effective()
    assert read(text + '[dlq]\npath = "bad"\n').dlq.path == "/nowhere/bad"


def test_units():
    assert [size(each) for each in (1, "1 kB", "1.5 MB", "2GiB", "3m")] == [
        1,
        1024,
        3 << 19,
        2 << 30,
        3 << 20,
    ]
    assert [duration(each) for each in ("500 ms", "1 minute", "2h", "1.5 days")] == [0.5, 60, 7200, 129600]
    for wrong in ("", "MB", "-1", "1 MB 2", None, True, 0):
        with pytest.raises(ValueError):
            size(wrong)
    for wrong in ("", "1", 1, "0 s", "1 month"):
        with pytest.raises(ValueError):
            duration(wrong)


def test_the_manual_names_every_key():
    rows = manual()
    assert {section for section, *_ in rows} == set(SECTIONS)
    assert all(help.rstrip(")").endswith(".") for *_, help in rows)


def test_the_manual_in_docs_is_that_of_the_code():
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, root / "tools" / "ingest_manual.py"])
    assert done.returncode == 0, "python tools/ingest_manual.py --write brings docs/ingest.md up to date"


def test_a_table_holds_what_was_committed_unless_the_file_says_otherwise():
    level = "kafka.isolation.level"
    assert source_options(Source(bootstrap="b:1", topics=("t",)))[level] == "read_committed"
    told = Source(bootstrap="b:1", topics=("t",), kafka={"isolation.level": "read_uncommitted"})
    assert source_options(told)[level] == "read_uncommitted"


@pytest.mark.parametrize(
    ("source", "key"), [('topics = ["f", "f-bad"]', "topics"), ('pattern = "f.*"', "pattern")]
)
def test_dead_letters_do_not_come_round_for_ever(source, key):
    text = f"""
[source]
bootstrap = "h:1"
{source}
[decode]
format = "json"
schema = "a INT"
[sink]
path = "table"
[dlq]
topic = "f-bad"
"""
    (told,) = mistakes(text)
    assert f"[dlq] topic is read by [source] {key}: its records would come round for ever" in told
    read(text.replace('topic = "f-bad"', 'topic = "bad"'))
    (told,) = mistakes(text.replace(source, 'pattern = "("'))
    assert "pattern is not a regular expression" in told
