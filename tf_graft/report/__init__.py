"""Records of a graft, reports on them, and the learning rates for each layer that result."""

from tf_graft.report.errors import ReportError
from tf_graft.report.graft_report import GraftReport
from tf_graft.report.rates import MeasuredRates
from tf_graft.report.recorder import GraftRecorder
from tf_graft.report.records import Records, read

__all__ = [
    "GraftRecorder",
    "GraftReport",
    "MeasuredRates",
    "Records",
    "ReportError",
    "read",
]
