"""Environments: gymnax's, our own, and bridges to external simulators."""
