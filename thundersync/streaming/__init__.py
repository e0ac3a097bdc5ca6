"""Gradient streaming: a logical batch's exact gradient, accumulated while the batch is still being made."""

from thundersync.streaming.continuation import Continuation
from thundersync.streaming.cuttable import CannotCut
from thundersync.streaming.exact_sums import Grid
from thundersync.streaming.open_group import GroupClosure
from thundersync.streaming.scores import SourceStatistics
from thundersync.streaming.stream import GradientStream

__all__ = ["CannotCut", "Continuation", "GradientStream", "Grid", "GroupClosure", "SourceStatistics"]
