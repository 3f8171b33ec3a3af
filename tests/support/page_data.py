"""The document in a report page."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any


def unpacked(page: str) -> dict[str, Any]:
    """The document in the HTML of a page."""
    letters = page.split('<script type="application/octet-stream" id="data">')[1].split("<")[0]
    document: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(letters)))
    return document
