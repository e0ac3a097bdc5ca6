"""Equations 14 to 28: what overlap saves, from a trace or from a release law. Needs numpy only."""
