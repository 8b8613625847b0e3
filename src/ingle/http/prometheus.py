"""Metrics in the text format of Prometheus. No label names a session: their number is bounded."""

from ingle import __version__
from ingle.capacity import Histogram, Metrics

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(metrics: Metrics) -> str:
    lines: list[str] = []

    def family(name: str, kind: str, help: str) -> str:
        lines.extend((f"# HELP {name} {help}", f"# TYPE {name} {kind}"))
        return name

    def by_label(name: str, label: str, values: dict[str, int]) -> None:
        lines.extend(f'{name}{{{label}="{_escaped(key)}"}} {value}' for key, value in sorted(values.items()))

    def histogram(name: str, values: Histogram) -> None:
        total = 0
        for bound, count in zip(values.bounds, values.counts, strict=False):
            total += count
            lines.append(f'{name}_bucket{{le="{bound:g}"}} {total}')
        total = sum(values.counts)
        lines.append(f'{name}_bucket{{le="+Inf"}} {total}')
        lines.extend((f"{name}_sum {values.sum!r}", f"{name}_count {total}"))

    lines.append(f'{family("ingle_info", "gauge", "The version that runs.")}{{version="{__version__}"}} 1')
    by_label(family("ingle_sessions", "gauge", "Live sessions by state."), "state", metrics.sessions)
    lines.append(f"{family('ingle_sessions_max', 'gauge', 'Most sessions at once.')} {metrics.max_sessions}")
    name = family("ingle_starts_waiting", "gauge", "Requests for sessions that wait for their turn.")
    lines.append(f"{name} {metrics.starts_waiting}")
    by_label(family("ingle_cells_total", "counter", "Finished cells by status."), "status", metrics.cells)
    histogram(family("ingle_cell_seconds", "histogram", "How long cells ran."), metrics.cell_seconds)
    histogram(family("ingle_start_seconds", "histogram", "How long sessions took to start."), metrics.start_seconds)
    by_label(family("ingle_worker_exits_total", "counter", "Ended workers by reason."), "reason", metrics.worker_exits)
    name = family("ingle_output_bytes_total", "counter", "Bytes that cells wrote to stdout and stderr.")
    lines.append(f"{name} {metrics.output_bytes}")
    name = family("ingle_egress_connections_total", "counter", "Connections of sessions through the proxy.")
    by_label(name, "outcome", metrics.egress)
    name = family("ingle_egress_bytes_total", "counter", "Bytes through the proxy, both ways.")
    lines.append(f"{name} {metrics.egress_bytes}")
    name = family("ingle_gpu_memory_bytes", "gauge", "Memory of GPUs that sessions use.")
    lines.append(f"{name} {metrics.gpu_memory}")
    name = family("ingle_gpu_utilization_percent", "gauge", "Time in which GPUs computed for sessions.")
    lines.append(f"{name} {metrics.gpu_utilization}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
