"""What a command is to work on: `FILE.py:FUNCTION`, or a model's name of torchvision, timm or transformers, with inputs."""

from __future__ import annotations

import importlib
import inspect
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.text import first_line
from bytejit.common.where import short_path

FROM = ("torchvision", "timm", "transformers")


class CannotLoad(Exception):
    """What was named is not there, or raises: one line. status: of the command that ends with it."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.status = status


@light_dataclass(frozen=True)
class Case:
    """A call: target(*args)."""

    name: str
    target: Callable
    args: tuple[Any, ...] = ()

    def on(self, device: str) -> Case:
        """The same on a device."""
        if device == "cpu":
            return self
        target = self.target.to(device) if isinstance(self.target, torch.nn.Module) else self.target
        moved = tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in self.args)
        return Case(self.name, target, moved)


def raised(what: str, e: BaseException) -> CannotLoad:
    """The line about an exception of the program's, with the place in its file that raised it."""
    frames = [
        f
        for f in traceback.extract_tb(e.__traceback__)
        if not f.filename.startswith(("<frozen", str(Path(__file__).parent.parent)))
    ]
    own = [f for f in frames if "site-packages" not in f.filename and "runpy" not in f.filename] or frames
    at = f" at {short_path(own[-1].filename)}:{own[-1].lineno}" if own else ""
    said = f"{type(e).__name__}: {first_line(e)}" if str(e).strip() else type(e).__name__
    cause = e
    while cause.__cause__ is not None:  # the first one says what is wrong, as of a package that does not fit another
        cause = cause.__cause__
    because = "" if cause is e else f", because of {type(cause).__name__}: {first_line(cause)}"
    return CannotLoad(f"{what} raised {said}{because}{at}", 1)


def load(spec: str, device: str = "cpu") -> Case:
    """Loads what a specification names, for a device. Raises: CannotLoad."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        raise CannotLoad(f"the device {device} cannot be used: {first_line(e)}") from None
    return named(spec).on(device)


def named(spec: str) -> Case:
    """What a specification names, on the CPU. Raises: CannotLoad."""
    if ":" in spec or spec.endswith(".py"):
        return from_file(spec)
    library, _, name = spec.rpartition("/")
    if library and library not in FROM:
        raise CannotLoad(f"{spec}: models come from {', '.join(FROM)}; your own code: FILE.py:FUNCTION")
    missing = []
    for source in (library,) if library else FROM:
        try:
            module = importlib.import_module(source)
        except Exception as e:  # one built for another torch raises what it likes
            missing.append(source if isinstance(e, ImportError) else f"{source}: {first_line(e)}")
            continue
        try:
            found = MODELS[source](module, name)
        except Exception as e:
            raise raised(f"{name} of {source}", e) from None
        if found is not None:
            return found
    not_there = f" (cannot be imported: {', '.join(missing)})" if missing else ""
    raise CannotLoad(f"no model {name!r} in {library or ', '.join(FROM)}{not_there}; your own code: FILE.py:FUNCTION")


def from_file(spec: str) -> Case:
    """A function of a file: what it returns, if that is (callable, arguments), else the function itself. Raises: CannotLoad."""
    file, _, name = spec.rpartition(":")
    if not file or not name:
        raise CannotLoad(f"{spec}: name a function of the file, as {spec.rstrip(':')}:FUNCTION")
    path = Path(file)
    if not path.is_file():
        raise CannotLoad(f"no such file: {file}")
    sys.path.insert(0, str(path.resolve().parent))
    try:
        space = runpy.run_path(str(path), run_name=path.stem)
    except (Exception, SystemExit) as e:
        raise raised(file, e) from None
    fn = space.get(name)
    if not callable(fn):
        known = ", ".join(k for k, v in space.items() if inspect.isfunction(v) and v.__module__ == path.stem)
        wrong = (
            f"{name} of {file} is no function but of the type {type(space[name]).__qualname__}"
            if name in space
            else f"{file} has no function {name}"
        )
        raise CannotLoad(wrong + (f"; it has {known}" if known else ""))
    sys.modules.setdefault(path.stem, module_of(path.stem, space))
    return case_of(spec, name, fn)


def case_of(spec: str, name: str, fn: Callable) -> Case:
    """What a function of the program's returns, or the function itself, if that makes no case. Raises: CannotLoad."""
    try:
        inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).bind()
    except TypeError:
        raise CannotLoad(f"{spec} takes arguments: name a function without any, which may return (function, (x, y))") from None
    try:
        with torch.no_grad():
            made = fn()
    except (Exception, SystemExit) as e:
        raise raised(spec, e) from None
    if isinstance(made, torch.nn.Module):
        raise CannotLoad(f"{spec} returned a module without inputs: let it return (module, (x, y))")
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        args = made[1] if isinstance(made[1], (tuple, list)) else (made[1],)
        target = made[0]
        return Case(getattr(target, "__qualname__", type(target).__qualname__), target, tuple(args))
    return Case(name, fn)


def module_of(name: str, space: dict[str, Any]) -> Any:
    """A module that holds what a file has made: classes find themselves by it."""
    module = type(sys)(name)
    module.__dict__.update(space)
    return module


# ---- models by name ----------------------------------------------------------------------------------------------------
FRAMES, TOKENS, SAMPLES = 16, 128, 16000  # of a video, a text, a second of sound


def of_torchvision(library: Any, name: str) -> Case | None:
    """A model of torchvision's with random weights, and what its kind takes; None where it has none of that name."""
    if name not in library.models.list_models():
        return None
    builder = library.models.get_model_builder(name)
    backbone = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
    model = builder(weights=None, **backbone).eval()
    side = 299 if name == "inception_v3" else 224
    kind = builder.__module__.split(".")[2:3]
    if kind == ["optical_flow"]:
        return Case(name, model, (torch.randn(1, 3, side, side), torch.randn(1, 3, side, side)))
    shape = (3, FRAMES, side, side) if kind == ["video"] else (3, side, side)
    return Case(name, model, (torch.randn(1, *shape),))


def of_timm(library: Any, name: str) -> Case | None:
    """A model of timm's with random weights, and an image; None where it has none of that name."""
    if not library.is_model(name):
        return None
    model = library.create_model(name, pretrained=False).eval()
    return Case(name, model, (torch.randn(1, *model.default_cfg["input_size"]),))


def of_transformers(library: Any, name: str) -> Case | None:
    """A model of transformers' of a type such as `bert`, with its default configuration, random weights, and what it takes."""
    try:
        config = library.AutoConfig.for_model(name)
    except ValueError:
        return None
    config.use_cache = False
    model = library.AutoModel.from_config(config).eval()
    parameters = inspect.signature(model.forward).parameters
    given = {n: made for n in parameters if (made := input_of(config, n)) is not None}
    last = max((i for i, n in enumerate(parameters) if n in given), default=-1)
    return Case(name, model, tuple(given.get(n) for n in list(parameters)[: last + 1]))


def input_of(config: Any, name: str) -> torch.Tensor | None:
    """An input of one of transformers' models by the name of its parameter; None for those that it can do without."""
    words, images = (getattr(config, part, config) for part in ("text_config", "vision_config"))
    if name == "input_ids" or name == "decoder_input_ids" and config.is_encoder_decoder:
        size = getattr(words, "vocab_size", 0)
        return torch.randint(0, size, (1, min(TOKENS, getattr(words, "max_position_embeddings", TOKENS)))) if size else None
    if name == "pixel_values" and hasattr(images, "image_size"):
        sides = images.image_size if isinstance(images.image_size, (tuple, list)) else (images.image_size,) * 2
        return torch.randn(1, getattr(images, "num_channels", 3), *sides)
    if name == "input_features" and hasattr(config, "num_mel_bins"):
        return torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions)
    return torch.randn(1, SAMPLES) if name == "input_values" and hasattr(config, "conv_dim") else None


MODELS: dict[str, Callable[[Any, str], Case | None]] = {
    "torchvision": of_torchvision,
    "timm": of_timm,
    "transformers": of_transformers,
}
