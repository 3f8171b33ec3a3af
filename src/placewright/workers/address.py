"""How a Ray cluster is named."""

from __future__ import annotations

HERE = "local"  # one that is started here
ANY = "auto"  # the one that `RAY_ADDRESS` names or that runs here, else one that is started here
ADDRESS = r"(?:ray://)?(?:[\w.\-]+|\[[0-9a-fA-F:]+\]):\d{1,5}"  # of one that is there
