"""Chromium as a subprocess, with an extension loaded: for `trio-relay demo --browser` and for the tests."""
