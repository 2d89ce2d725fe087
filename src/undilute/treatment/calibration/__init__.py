"""Fit a rule to the heads of a model on the user's text, without training a weight."""
