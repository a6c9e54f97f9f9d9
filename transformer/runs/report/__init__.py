"""Runs as pages."""

from transformer.runs.report.page import REPORT, write_comparison, write_report

__all__ = ["REPORT", "write_comparison", "write_report"]
