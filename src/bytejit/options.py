"""Options of a compile under their public names: `bytejit.options.Options`, and `config`, which holds the defaults."""

from .common.options import Config, Options, Settings, config

__all__ = ["Config", "Options", "Settings", "config"]
