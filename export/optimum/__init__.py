"""Graphs traced by optimum, for model types that have no description here."""
