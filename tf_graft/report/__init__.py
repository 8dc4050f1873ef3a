"""What a graft measured: recorded, reported, and turned into per-layer rates."""

from tf_graft.report.errors import ReportError
from tf_graft.report.graft_report import GraftReport
from tf_graft.report.rates import LayerwiseRates
from tf_graft.report.recorder import GraftRecorder
from tf_graft.report.records import Records, read

__all__ = ["GraftRecorder", "GraftReport", "LayerwiseRates", "Records", "ReportError", "read"]
