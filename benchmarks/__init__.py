"""The benchmarks of trio-relay: `python -m benchmarks --help`. docs/performance.md says what is measured, and how."""
