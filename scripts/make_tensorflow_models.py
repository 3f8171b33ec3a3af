"""Write models with TensorFlow: SavedModels, frozen graphs and TFLite files.

For `--folder` of `python -m benchmarks.foreign`. Needs TensorFlow (tried with 2.21), which is no
dependency of the project: run it with the Python of an environment that has it. Weights are
random; networks of `keras.applications` are TensorFlow's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras import layers

APPLICATIONS = (
    "MobileNet", "MobileNetV2", "MobileNetV3Small", "EfficientNetB0", "EfficientNetV2B0",
    "ResNet50", "ResNet50V2", "DenseNet121", "NASNetMobile", "Xception", "InceptionV3",
    "InceptionResNetV2", "VGG16", "ConvNeXtTiny",
)  # fmt: skip


def application(name: str) -> Any:
    side = 75 if name in ("Xception", "InceptionV3", "InceptionResNetV2") else 64
    side = 224 if name == "NASNetMobile" else side
    return getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=10)


def perceptron() -> Any:
    given = keras.Input((16,))
    found = layers.Dense(32, "relu")(given)
    for _ in range(3):
        found = layers.LayerNormalization()(layers.Dense(32, "gelu")(found) + found)
    return keras.Model(given, layers.Softmax()(layers.Dense(5)(found)))


def recurrent(kind: str) -> Any:
    given = keras.Input((12, 8))
    layer = getattr(layers, kind)(16, return_sequences=True, unroll=True)
    return keras.Model(given, layers.Dense(4)(layers.GlobalAveragePooling1D()(layer(given))))


def transformer() -> Any:
    given = keras.Input((10, 24))
    found = given
    for _ in range(2):
        found = layers.LayerNormalization()(found + layers.MultiHeadAttention(4, 6)(found, found))
        wide = layers.Dense(24)(layers.Dense(48, "gelu")(found))
        found = layers.LayerNormalization()(found + wide)
    return keras.Model(given, layers.Dense(3)(layers.GlobalAveragePooling1D()(found)))


def unet() -> Any:
    given = keras.Input((32, 32, 3))
    found, skipped = given, []
    for width in (8, 16):
        found = layers.Conv2D(width, 3, padding="same", activation="relu")(found)
        skipped.append(found)
        found = layers.MaxPooling2D()(found)
    found = layers.Conv2D(32, 3, padding="same", activation="relu")(found)
    for width in (16, 8):
        found = layers.Conv2DTranspose(width, 3, strides=2, padding="same")(found)
        found = layers.Concatenate()([found, skipped.pop()])
        found = layers.Conv2D(width, 3, padding="same", activation="relu")(found)
    return keras.Model(given, layers.Conv2D(2, 1)(found))


def volume() -> Any:
    given = keras.Input((8, 8, 8, 2))
    found = layers.Conv3D(8, 3, activation="relu")(given)
    found = layers.Conv3D(8, 2, strides=2)(found)
    return keras.Model(given, layers.Dense(3)(layers.Flatten()(found)))


def signal() -> Any:
    given = keras.Input((64, 2))
    found = given
    for rate in (1, 2, 4):
        found = layers.Conv1D(8, 3, padding="causal", dilation_rate=rate, activation="relu")(found)
    return keras.Model(given, layers.Dense(2)(layers.GlobalMaxPooling1D()(found)))


def two_inputs() -> Any:
    left, right = keras.Input((6,), name="right"), keras.Input((6,), name="left")
    both = [layers.Dense(8, "tanh")(one) for one in (left, right)]
    joined = layers.Multiply()(both) + layers.Subtract()(both)
    return keras.Model([left, right], [layers.Dense(2)(joined), layers.Dense(3)(both[1])])


def makers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and maker of every network."""
    for name in APPLICATIONS:
        yield name, lambda name=name: application(name)  # type: ignore[misc]
    for kind in ("LSTM", "GRU", "SimpleRNN"):
        yield kind, lambda kind=kind: recurrent(kind)  # type: ignore[misc]
    for make in (perceptron, transformer, unet, volume, signal, two_inputs):
        yield make.__name__, make


def write(folder: Path, name: str, model: Any) -> None:
    """The network in three formats, with a batch of one sample."""
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    shapes = [tf.TensorSpec((1, *one.shape[1:]), one.dtype, one.name) for one in model.inputs]
    called = tf.function(lambda *given: model(list(given) if len(given) > 1 else given[0]))
    concrete = called.get_concrete_function(*shapes)
    # Keras' own way keeps the names by which readers find variables in a SavedModel. TFLite's
    # converter leaves variables as resources, which few readers have, unless they are frozen.
    model.export(str(folder / f"{name}_saved"), verbose=False, input_signature=shapes)
    frozen = convert_variables_to_constants_v2(concrete)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([frozen], model)
    (folder / f"{name}.tflite").write_bytes(converter.convert())
    tf.io.write_graph(frozen.graph, str(folder), f"{name}.pb", as_text=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="comma-separated names; all without")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    chosen = set(filter(None, given.only.split(",")))
    for name, make in makers():
        if not chosen or name in chosen:
            keras.utils.set_random_seed(0)
            try:
                write(given.folder, name, make())
                told = name
            except Exception as error:  # one network that a converter refuses is told
                told = f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}"
            sys.stdout.write(f"{told}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
