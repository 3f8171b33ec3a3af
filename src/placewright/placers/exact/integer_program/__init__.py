"""Mixed-integer programs: rows and columns, the solver, and questions with a limit."""
