"""Execution model `sequential`: one op at a time over all devices, as a language model runs."""
