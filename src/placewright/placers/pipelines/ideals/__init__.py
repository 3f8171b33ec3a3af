"""Dynamic programs over ideals: items, their enumeration, the kernel that walks them."""
