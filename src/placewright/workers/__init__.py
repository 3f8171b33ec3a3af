"""Tasks on more than one core: in this process, in processes of this machine, on a Ray cluster."""
