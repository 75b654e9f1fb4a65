"""`make sanitize`: run the tests of the native code under AddressSanitizer and UBSan.

    python tools/sanitize.py [pytest arguments]

The extensions are built a second time, in a copy of the tree under build/sanitize, so the normal ones stay
unchanged. A second call builds only changed files. The tests run there with PYTHONMALLOC=malloc, so that
every Python object has its own memory and an overrun of one byte is detected. Every process that finds an
error writes a report, even if it is forked or killed by a test: AddressSanitizer to a file, UBSan to stderr,
which pytest does not capture here. A report is a failure, even if the tests pass.

Beware: leaks are not detected, because Python frees little when it ends. Tests count memory instead."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "sanitize"
REPORT = "sanitizer-report"
UNITS = (
    "arrow_build avro_columns batch batch_bombs batch_librdkafka buffers cleaner cleaner_files"
    " codec_steps cold_reads compression crc32c csv_columns down_conversion fetch_session forwarding"
    " forwarding_limits group_commit group_loading handover heap_objects host_counts json_columns"
    " large_batches legacy_records list_offsets log_append_read log_cleaning log_exchange log_guards"
    " log_old_formats log_producers log_recovery log_shortages log_successor log_transactions mailbox"
    " message_sets moving_connections partition partition_places partition_reader"
    " partition_reader_forked partition_table produce_gate produce_gate_answers produce_slices"
    " producer_ids proto_columns protocol_codec reactor reactor_chaos reactor_fetch reactor_hunts"
    " reactor_limits reactor_old_fetch reactor_produce reactor_steady record_columns record_encode"
    " records segment_scan tls_regions tls_sealing topic_rights unpacking unpacking_stress value_fuzz"
    " value_options watermarks whole_sets"
)
MORE = ("tests/fuzz/test_login_fuzz.py",)  # with brokers of this build
# tests that measure time or memory are meaningless in this build
NOT = (
    "gives_the_arena_back or bomb_costs or no_buffer_stays_behind or short_turns"
    " or freeing_gives_all_memory_back or window_above_128_mib or keeps_pages_and_not_arenas"
    " or memory_of_a_wide_session"
    " or takes_no_object or malformed_message_is_freed_in_steps or do_not_wait_to_be_merged"
    " or any_other_bus_error"
)
SHORTAGE = "AddressSanitizer failed to allocate"  # tests cause this on purpose
SEEN = "import ctypes; ctypes.memmove(ctypes.create_string_buffer(8), bytes(80), 80)"  # too far
LIBRARIES = ("libasan.so", "libubsan.so")


def copied() -> None:
    """Update the copy from the tree. Unchanged files keep their time, so they are not built again."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    wanted = {name for name in os.fsdecode(listed).split("\0") if name and (ROOT / name).is_file()}
    wanted |= {str(path.relative_to(ROOT)) for path in ROOT.glob("kafkad/_native/*/*.c")}  # else made anew
    for name in wanted:
        source, target = ROOT / name, COPY / name
        if not target.exists() or source.stat().st_mtime_ns != target.stat().st_mtime_ns:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for path in (COPY / "kafkad").rglob("*"):  # removed modules must not be found
        name = str(path.relative_to(COPY))
        if path.is_file() and path.suffix in (".py", ".pyx", ".pxd") and name not in wanted:
            path.unlink()


def built() -> None:
    environment = {**os.environ, "KAFKAD_SANITIZE": "1"}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    log = COPY / "native.log"
    with open(log, "w") as out:
        done = subprocess.run(command, cwd=COPY, env=environment, stdout=out, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit("\n".join(log.read_text().splitlines()[-40:]))


def library(name: str) -> str:
    command = [os.environ.get("CC", "gcc"), f"-print-file-name={name}"]
    path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(path):
        sys.exit(f"the C compiler has no {name}: the sanitizers' libraries are missing")
    return path


def reports() -> list[str]:
    """Return the new reports."""
    found = []
    for path in sorted(COPY.glob(f"{REPORT}.*")):
        lines = path.read_text(errors="replace").splitlines()
        path.unlink()
        if lines := [line for line in lines if SHORTAGE not in line]:
            found.append("\n".join(lines))
    said = COPY / "stderr.log"
    if said.exists() and "runtime error:" in (text := said.read_text(errors="replace")):
        found.append(text)
    return found


def tested(arguments: list[str]) -> int:
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(library, LIBRARIES)),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:log_path={COPY / REPORT}",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    reports()
    subprocess.run([sys.executable, "-c", SEEN], env=environment, stderr=subprocess.DEVNULL)
    if not reports():
        sys.exit("the sanitizers are not at work: they do not see a write behind the end of a buffer")
    files = [*(f"tests/unit/test_{name}.py" for name in UNITS.split()), *MORE]
    missing = [name for name in files if not (COPY / name).exists()]
    if missing:
        sys.exit(f"UNITS or MORE names tests that are not there: {', '.join(missing)}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--capture=sys",
        "--timeout=600",
        *files,
    ]
    command += ["-k", f"not ({NOT})", *arguments]  # the last -k counts
    with open(COPY / "stderr.log", "wb") as said:
        code = subprocess.run(command, cwd=COPY, env=environment, stderr=said).returncode
    found = reports()
    for report in found:
        print(report, file=sys.stderr)
    return 1 if found else code


def main() -> None:
    copied()
    print(f"building the native extensions with sanitizers in {COPY.relative_to(ROOT)}", flush=True)
    built()
    sys.exit(tested(sys.argv[1:]))


if __name__ == "__main__":
    main()
