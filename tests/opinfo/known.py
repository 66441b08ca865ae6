"""Rows that differ from eager, each with its reason. A row listed that passes is an error: then delete it here.

(operator, setting or a part of its name) -> why. The setting is matched by words: "grad" fits every setting with it.
"""

from __future__ import annotations

# of a GPU
_NO_VIEW = "eager asks for a view of channels that these strides have not; the compiled call shuffles them"
_REFUSED = "eager's kernels of a GPU lack the dtype of a mask or of indices"
_NAN = "eager's mean of infinite numbers is nan on a GPU, and the compiled one infinite"
_EMPTY = "eager raises for statistics without elements"
KNOWN: dict[tuple[str, str], str] = {
    **{("nn.functional.channel_shuffle", f"cuda {twist}"): _NO_VIEW for twist in ("transposed", "strided", "expanded")},
    **{(name, "cuda special"): _NAN for name in ("native_layer_norm", "nn.functional.rms_norm")},
    **{(name, "cuda empty"): _EMPTY for name in ("native_batch_norm", "_native_batch_norm_legit")},
    **{(name, "cuda mixed"): _REFUSED for name in ("native_dropout_backward", "nn.functional.embedding")},
    ("narrow_copy", "cuda out"): "eager has no kernel of a GPU for it",
    ("nn.functional.embedding", "cuda strided"): "eager's max_norm reads the wrong elements of a strided weight",
    ("linalg.eigvals", "cuda transposed"): "eager writes into its input",
    ("logcumsumexp", "cuda grad"): "a sample of 10000: the digits of f32 are used up in eager as well",
    ("nn.functional.upsample_bilinear", "cuda special"): "a weight of 0 in eager is 1e-7, or the other way: nan for infinity",
    ("nn.functional.max_unpool3d", "cuda special"): "several elements at one place: the last one wins, whichever that is",
    ("__rmod__", "int64 cuda"): "an integer modulo 0 is undefined on a GPU",
    **{
        ("torch.ops.aten._efficient_attention_forward", f"cuda {twist}"): "its seed is memory that nothing wrote"
        for twist in ("special", "expanded")
    },
}


def reason(op: str, setting: str) -> str:
    """Why a row is known to differ; "" when it is not."""
    words = set(setting.split())
    return next((why for (name, where), why in KNOWN.items() if name == op and set(where.split()) <= words), "")
