"""A run's metrics for programs: one line of JSON per batch, and Prometheus' text format on a port.

The keys of the JSONL file are those of a batch's record (checkpoint.py). Prometheus has the names of METRICS,
with the prefix `kafkad_ingest_` and the label `pipeline`. The port listens on 127.0.0.1 only, as long as the
run lasts.
"""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# name -> (type, its place in a batch's record, help)
METRICS = {
    "rows_total": ("counter", ("totals", "rows"), "Rows that the table has."),
    "records_total": ("counter", ("totals", "records"), "Records that were read."),
    "bytes_total": ("counter", ("totals", "bytes"), "Bytes of keys and values that were read."),
    "bad_records_total": ("counter", ("totals", "bad"), "Records that could not be decoded."),
    "batches_total": ("counter", ("totals", "batches"), "Batches that were committed."),
    "files_total": ("counter", ("totals", "files"), "Data files that were written."),
    "lag_records": ("gauge", ("lag",), "Offsets between what was read and the end of the topics."),
    "last_batch_seconds": ("gauge", ("seconds",), "How long the last batch took."),
    "last_batch_timestamp_seconds": ("gauge", ("at",), "When the last batch was committed."),
}


class Metrics:
    """Call `batch(record)` after each commit. `last`: the record with which to begin, so that counters
    continue from the previous run. Raises OSError, which names the file or port, if one is not available.
    """

    def __init__(
        self,
        pipeline: str,
        jsonl: str | None = None,
        prometheus: int | None = None,
        last: dict[str, Any] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.last: dict[str, Any] = last or {}
        self._file = None
        self._server: ThreadingHTTPServer | None = None
        if jsonl is not None:
            os.makedirs(os.path.dirname(jsonl) or ".", exist_ok=True)
            self._file = open(jsonl, "a", encoding="utf-8")  # noqa: SIM115
        if prometheus is not None:
            try:
                self._server = ThreadingHTTPServer(("127.0.0.1", prometheus), self._handler())
            except OSError as trouble:
                place = f"[metrics] prometheus = {prometheus}"
                raise OSError(trouble.errno, trouble.strerror, place) from None
            threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def batch(self, record: dict[str, Any]) -> None:
        self.last = record
        if self._file is not None:
            self._file.write(json.dumps({"pipeline": self.pipeline, **record}) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def text(self) -> str:
        """Return Prometheus' text exposition format, version 0.0.4."""
        label = self.pipeline.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines = []
        for name, (kind, path, help) in METRICS.items():
            value: Any = self.last
            for part in path:
                value = value.get(part) if isinstance(value, dict) else None
            if value is None:
                value = 0
            full = f"kafkad_ingest_{name}"
            lines += [
                f"# HELP {full} {help}",
                f"# TYPE {full} {kind}",
                f'{full}{{pipeline="{label}"}} {value}',
            ]
        return "\n".join(lines) + "\n"

    def _handler(metrics) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.split("?")[0] in ("/", "/metrics")
                body = metrics.text().encode() if found else b"it is /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass  # do not log scrapes

        return Handler
