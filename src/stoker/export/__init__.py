"""Exports GGUF models as ONNX folders."""

from stoker.export.export import ExportReport, WrittenAs, export_model
from stoker.export.options import ExportOptions

__all__ = ["ExportOptions", "ExportReport", "WrittenAs", "export_model"]
