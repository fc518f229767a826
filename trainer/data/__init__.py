"""Prepared data sets, and which samples a rank sees in a step."""
