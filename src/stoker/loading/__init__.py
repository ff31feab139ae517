"""Finds the files of a model, chooses the backend that computes it, and opens it. It does not run the model."""
