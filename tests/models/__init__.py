"""Whole models against eager."""
