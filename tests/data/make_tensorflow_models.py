"""Makes the TensorFlow files of this folder; needs ``pip install tensorflow-cpu``.

One small network with seeded random weights, saved the three ways that TensorFlow has: a SavedModel
folder (variables in files of their own), a frozen GraphDef, a TensorFlow Lite flat buffer.
``expected.npz`` holds an input and the output that TensorFlow computes for it.

    python tests/data/make_tensorflow_models.py tests/data/tensorflow
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2 as freeze,
)

SEED = 20240229


class Network(tf.Module):
    """Two convolution branches over an image, joined, pooled, and a dense head with softmax."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(SEED)

        def weight(*shape: int) -> tf.Variable:
            scale = np.sqrt(2.0 / np.prod(shape[:-1]))
            return tf.Variable((rng.standard_normal(shape) * scale).astype(np.float32))

        self.stem, self.left, self.right = (
            weight(3, 3, 3, 8),
            weight(3, 3, 8, 8),
            weight(1, 1, 8, 8),
        )
        self.bias, self.head = weight(8), weight(16, 10)

    @tf.function(input_signature=[tf.TensorSpec([1, 16, 16, 3], tf.float32, name="image")])
    def __call__(self, image: tf.Tensor) -> tf.Tensor:
        stem = tf.nn.relu(tf.nn.conv2d(image, self.stem, 2, "SAME") + self.bias)
        left = tf.nn.relu(tf.nn.conv2d(stem, self.left, 1, "SAME"))
        right = tf.nn.sigmoid(tf.nn.conv2d(stem, self.right, 1, "SAME"))
        pooled = tf.reduce_mean(tf.concat([left, right], 3), [1, 2])
        return tf.nn.softmax(tf.matmul(pooled, self.head))


def main(folder: Path) -> None:
    """Write all files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    network = Network()
    concrete = network.__call__.get_concrete_function()
    tf.saved_model.save(network, str(folder / "network"), signatures=concrete)
    frozen = freeze(concrete).graph.as_graph_def()
    (folder / "network.pb").write_bytes(frozen.SerializeToString())
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], network)
    (folder / "network.tflite").write_bytes(converter.convert())
    image = np.random.default_rng(SEED + 1).standard_normal((1, 16, 16, 3)).astype(np.float32)
    np.savez(folder / "expected.npz", image=image, output=network(image).numpy())
    print(tf.__version__, *sorted(file.name for file in folder.rglob("*") if file.is_file()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
