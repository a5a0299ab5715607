"""Limits in HTTP: a thin room for each framework, over what the headers say."""
