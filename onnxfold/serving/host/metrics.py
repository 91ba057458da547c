"""Prometheus metrics of batching and runs, in addition to MLServer's own counters."""

from prometheus_client import Counter, Gauge, Histogram

_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

BATCH_REQUESTS = Histogram(
    "onnxfold_batch_requests", "Requests that shared one run", ["model"], buckets=_POWERS
)
BATCH_ROWS = Histogram("onnxfold_batch_rows", "Rows of one run", ["model"], buckets=_POWERS)
RUN_SECONDS = Histogram("onnxfold_run_seconds", "Time of one run of the session", ["model"])
RUNS_FAILED = Counter("onnxfold_runs_failed", "Runs that raised an error", ["model"])
REFUSED = Counter(
    "onnxfold_requests_refused", "HTTP requests that no endpoint got to see", ["status"]
)
WAITING = Gauge("onnxfold_requests_waiting", "Requests that wait for a worker", ["model"])
