"""Records the formats that llama.cpp's own converter and quantizer give to small random models.

    python scripts/make_quantized_facts.py --source LLAMA_CPP --quantize LLAMA_QUANTIZE

LLAMA_CPP is a folder with the sources of llama.cpp, LLAMA_QUANTIZE the program. Each configuration
of `tests/support/small_configs.py` is saved with random weights and converted without a vocabulary.
The quantizer prints what it would write (`--dry-run`) for each format.
`tests/data/language/quantized.json` holds the answers.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONVERT = """
import logging, sys
from pathlib import Path
source, root = sys.argv[1], Path(sys.argv[2])
sys.path[:0] = [source + "/gguf-py", source]
import gguf, torch
from conversion import get_model_class
from conversion.base import ModelBase
logging.disable(logging.WARNING)
for folder in sorted(root.iterdir()):
    fields = ModelBase.load_hparams(folder, False)
    kind = get_model_class(fields["architectures"][0])
    kind.set_vocab = lambda self: self._set_vocab_none()
    kind.no_mtp = fields["model_type"] == "qwen3_next"  # the library makes no such layers of it
    words = [b""] * fields["vocab_size"]
    kind._create_vocab_sentencepiece = lambda self: (words, [], [])
    (folder / "tokenizer.model").touch()
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.MOSTLY_F16, folder / "whole.gguf", is_big_endian=False,
             use_temp_file=False, eager=False, model_name="small").write()
"""
_ROW = re.compile(r"\] (\S+) +- \[([ \d,]+)\], type = +(\w+), size = .*?(?:\((\w+)\))?$", re.M)


def main() -> None:
    """Write the answers."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--source", required=True)
    options.add_argument("--quantize", required=True)
    options.add_argument("--folder", type=Path, help="keeps the converted files")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = given.folder or Path(folder)
        save(root)
        subprocess.run([sys.executable, "-c", CONVERT, given.source, root], check=True)
        found = {each.name: answers(each / "whole.gguf", given.quantize) for each in root.iterdir()}
    target = ROOT / "tests/data/language/quantized.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


def save(root: Path) -> None:
    """Save each configuration with random weights."""
    import torch
    import transformers

    sys.path.insert(0, str(ROOT / "tests"))
    from support.small_configs import SMALL

    torch.manual_seed(0)
    for name, fields in SMALL.items():
        config = transformers.AutoConfig.for_model(**fields)
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        module.save_pretrained(root / name)


def answers(file: Path, quantize: str) -> Mapping[str, str]:
    """Shape of each tensor, and its format for each of `FORMATS`."""
    from support.small_configs import FORMATS

    rows: dict[str, list[str]] = {}
    for each in FORMATS:
        command = [quantize, "--dry-run", file, each, "1"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{file} {each}: {done.stderr[-800:]}")
        for name, sizes, before, after in _ROW.findall(done.stdout + done.stderr):
            shape = re.sub(r"(x1)+$", "", "x".join(size.strip() for size in sizes.split(",")))
            rows.setdefault(name, [shape]).append((after or before).lower())
    return {key: " ".join(row) for key, row in rows.items()}


if __name__ == "__main__":
    main()
