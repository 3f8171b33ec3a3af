"""Language models: reads their files as graphs of modules; nothing here runs them."""
