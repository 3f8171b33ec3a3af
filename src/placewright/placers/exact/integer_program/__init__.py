"""Mixed-integer programs: rows and columns, HiGHS, and proofs by CP-SAT under a fixed limit."""
