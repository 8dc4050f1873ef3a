"""Records of a graft, reports on them, and the learning rates for each layer that result."""

from tf_graft.core.files.report_files import ReportError
from tf_graft.grafting.graft_report import GraftReport
from tf_graft.grafting.measured_rates import MeasuredRates
from tf_graft.grafting.recorder import GraftRecorder
from tf_graft.grafting.records import Records, read

__all__ = [
    "GraftRecorder",
    "GraftReport",
    "MeasuredRates",
    "Records",
    "ReportError",
    "read",
]
