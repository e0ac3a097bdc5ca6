"""The embedded policy and teacher, made here from nothing. Start with `build_models`."""

from thundersync.warm_start.models import ModelPaths, ModelRequest, build_models

__all__ = ["ModelPaths", "ModelRequest", "build_models"]
