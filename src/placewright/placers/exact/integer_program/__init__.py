"""Mixed-integer programs, whatever they are about: rows and columns, and the solver."""
