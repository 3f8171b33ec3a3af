"""Tables of published learned systems, run again: HSDAG, Post, Placeto."""
