"""Runs as pages."""

from transformer.report.comparison import write_comparison
from transformer.report.page import REPORT, write_report

__all__ = ["REPORT", "write_comparison", "write_report"]
