"""`kafkad doctor cluster PROPERTIES`: what a start would refuse, before it is tried."""

import json

from click.testing import CliRunner

from kafkad.cli.doctor import command

NODE = {
    "process.roles": "broker,controller",
    "node.id": "2",
    "listeners": "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "controller.quorum.voters": "1@127.0.0.1:19091,2@127.0.0.1:19093,3@127.0.0.1:19095",
}
IDENTITY = "version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id={}\ndirectory.id=fjR0F0mDTuWHZiFTOLyWqg\n"


def examine(tmp_path, formatted=2, **changes):
    """(exit code, {check: [(state, found)]}) of a node in `tmp_path`."""
    data = tmp_path / "data"
    data.mkdir(exist_ok=True)
    if formatted is not None:
        (data / "meta.properties").write_text(IDENTITY.format(formatted))
    keys = {**NODE, "log.dirs": str(data), **{key.replace("_", "."): value for key, value in changes.items()}}
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    result = CliRunner().invoke(command, ["cluster", "--json", str(file)])
    found = {}
    for row in json.loads(result.output[: result.output.rindex("]") + 1]):
        assert (row["state"] == "TROUBLE") == bool(row["what_to_do"])
        found.setdefault(row["check"], []).append((row["state"], row["found"]))
    before = sorted(path.name for path in data.iterdir())
    assert before == (["meta.properties"] if formatted is not None else []), "nothing is written"
    return result.exit_code, found


def test_a_node_that_can_be_taken_over(tmp_path):
    code, found = examine(tmp_path)
    assert (code, set(found)) == (0, {"properties", "directories"})
    assert found["properties"] == [("ok", f"kafkad has what {tmp_path}/server.properties asks for")]
    directory = f"{tmp_path}/data: node 2 of cluster MkU3OEVBNTcwNTJENDM2Qg"
    assert found["directories"] == [("ok", directory)]


def test_each_refused_key_is_named_and_what_has_no_effect_is_a_note(tmp_path):
    code, found = examine(
        tmp_path, remote_log_storage_system_enable="true", log_cleaner_io_buffer_size="2", no_such_key="1"
    )
    assert code == 1
    (refused, ignored, unknown) = found["properties"]
    assert refused[0] == "TROUBLE" and "remote.log.storage.system.enable" in refused[1]
    assert ignored[0] == "note" and "log.cleaner.io.buffer.size" in ignored[1]
    assert unknown == ("note", "keys that Kafka does not have either: no.such.key")
    assert found["directories"][0][0] == "ok"


def test_a_file_that_security_needs_and_a_value_that_is_wrong(tmp_path):
    code, found = examine(
        tmp_path,
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:SSL",
        ssl_keystore_type="PEM",
        ssl_keystore_location=f"{tmp_path}/none.pem",
    )
    ((state, text),) = found["security"]
    assert (code, state) == (1, "TROUBLE") and f"{tmp_path}/none.pem" in text
    code, found = examine(tmp_path, num_partitions="many")
    ((state, text),) = found["properties"]
    assert (code, state) == (1, "TROUBLE") and "num.partitions" in text
    result = CliRunner().invoke(command, ["cluster", "--json", f"{tmp_path}/none.properties"])
    assert result.exit_code == 1 and "No such file" in result.output


def test_directories_of_others_or_that_are_not_formatted_or_not_there(tmp_path):
    assert examine(tmp_path, formatted=None) == (
        1,
        {
            "properties": [("ok", f"kafkad has what {tmp_path}/server.properties asks for")],
            "directories": [("TROUBLE", f"{tmp_path}/data is not formatted")],
        },
    )
    code, found = examine(tmp_path, formatted=3)
    assert (code, found["directories"]) == (
        1,
        [("TROUBLE", f"{tmp_path}/data is of node 3, and node.id is 2")],
    )
    code, found = examine(tmp_path, log_dirs=f"{tmp_path}/data,{tmp_path}/other")
    assert code == 1 and found["directories"][0] == ("TROUBLE", f"{tmp_path}/other is not there")


def test_something_has_to_be_named():
    result = CliRunner().invoke(command, ["cluster"], env={"KAFKAD_BOOTSTRAP_SERVER": None})
    assert result.exit_code == 2 and "name a server.properties file" in result.output
