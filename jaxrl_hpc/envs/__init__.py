"""Environments: gymnax's, our own, and bridges to outside simulators."""
