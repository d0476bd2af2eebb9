"""Measures attention libraries and ropewalk side by side. Entry point: ../run.py."""
