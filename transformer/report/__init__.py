"""A run as a page."""

from transformer.report.page import REPORT, write_report

__all__ = ["REPORT", "write_report"]
