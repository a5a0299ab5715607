"""What aiolimit costs, in time and in memory, beside other limiters: `python -m benchmarks`.

Each module measures some rows of one table (the targets are in the rows), and says in its first
lines what it measures and why that way. The run prints the table and writes docs/benchmarks.md.
Nothing here is a test: a missed target is told, and fails nothing.
"""
