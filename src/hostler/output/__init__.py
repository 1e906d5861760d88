"""Structured output: what a turn's answer is to look like, found in what the agent said and checked."""

from .wanted import Output, checked, held, invalid, wanted

__all__ = ["Output", "checked", "held", "invalid", "wanted"]
