"""The embedded policy and teacher, made here from nothing. Start with `build_models`."""

from thundersync.warm_start.models import ModelPaths, build_models

__all__ = ["ModelPaths", "build_models"]
