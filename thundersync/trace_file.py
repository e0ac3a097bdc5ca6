"""Perfetto trace files: slices on named tracks, arrows between slices, counters. ui.perfetto.dev opens them.

Times are seconds on the training clock here and whole nanoseconds in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

SEQUENCE = 1
NANO = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that took time on a track. Slices of a track nest; they never cross."""

    room: str
    """What the track belongs to: rollout, environment, teacher, learner, publisher."""
    track: str
    name: str
    start: float
    end: float
    flows: tuple[int, ...] = ()
    """Slices that share a number are joined by arrows, in order of their starts."""
    notes: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The value of a counter from `at` on."""

    counter: str
    at: float
    value: int


def write_trace(path: Path, slices: Sequence[Slice], samples: Sequence[Sample]) -> None:
    """Writes the file complete or not at all. Raises ValueError naming slices that cross on a track."""
    builder = TraceProtoBuilder()
    tracks = _declare(builder, slices, samples)
    events = [event for own in _by_track(slices).values() for event in _nested(own)]
    events += [(_nanoseconds(sample.at), sample) for sample in samples]
    for at, event in sorted(events, key=lambda pair: pair[0]):  # stable: a track's own order stays
        packet = builder.add_packet()
        packet.timestamp, packet.trusted_packet_sequence_id = at, SEQUENCE
        _fill(packet.track_event, event, tracks)
    draft = path.with_suffix(".partial")
    draft.write_bytes(builder.serialize())
    draft.replace(path)


def read_trace(path: Path) -> tuple[list[Slice], list[Sample]]:
    """What `write_trace` wrote, in order of starts. Raises ValueError for a file that holds no trace."""
    trace = Trace()
    try:
        trace.ParseFromString(path.read_bytes())
    except Exception as error:
        raise ValueError(f"{path} is no Perfetto trace: {error}") from None
    named = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    open_slices: dict[int, list[tuple[float, TrackEvent]]] = {}
    slices, samples = [], []
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event, at = packet.track_event, packet.timestamp / NANO
        track = named[event.track_uuid]
        if event.type == TrackEvent.TYPE_COUNTER:
            samples.append(Sample(counter=track.name, at=at, value=event.counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_slices.setdefault(track.uuid, []).append((at, event))
        else:
            start, begun = open_slices[track.uuid].pop()
            slices.append(
                Slice(
                    room=named[track.parent_uuid].name,
                    track=track.name,
                    name=begun.name,
                    start=start,
                    end=at,
                    flows=tuple(begun.flow_ids),
                    notes={note.name: _value(note) for note in begun.debug_annotations},
                )
            )
    return sorted(slices, key=lambda s: (s.start, -s.end)), samples


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANO)


def _by_track(slices: Iterable[Slice]) -> dict[tuple[str, str], list[Slice]]:
    tracks: dict[tuple[str, str], list[Slice]] = {}
    for one in slices:
        tracks.setdefault((one.room, one.track), []).append(one)
    return tracks


def _nested(slices: list[Slice]) -> list[tuple[int, Slice | tuple[str, str]]]:
    """Begins (the slice) and ends (its track) of one track, as brackets in order of time."""
    events: list[tuple[int, Slice | tuple[str, str]]] = []
    enclosing: list[Slice] = []

    def end() -> None:
        last = enclosing.pop()
        events.append((_nanoseconds(last.end), (last.room, last.track)))

    for one in sorted(slices, key=lambda s: (s.start, -s.end)):
        while enclosing and enclosing[-1].end <= one.start:
            end()
        if enclosing and one.end > enclosing[-1].end:
            raise ValueError(f"{one.room}, {one.track}: {one.name} and {enclosing[-1].name} cross")
        events.append((_nanoseconds(one.start), one))
        enclosing.append(one)
    while enclosing:
        end()
    return events


def _declare(builder: TraceProtoBuilder, slices: Sequence[Slice], samples: Sequence[Sample]) -> dict:
    """Names rooms, tracks and counters, in order of first appearance; (room, track) or counter -> uuid."""
    uuids: dict = {}

    def declare(key, name: str, parent: int | None) -> TrackDescriptor:
        descriptor = builder.add_packet().track_descriptor
        descriptor.uuid = uuids[key] = len(uuids) + 1
        descriptor.name = name
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        descriptor.sibling_order_rank = len(uuids)
        if parent is not None:
            descriptor.parent_uuid = parent
        return descriptor

    for counter in dict.fromkeys(sample.counter for sample in samples):
        declare(counter, counter, None).counter.SetInParent()
    for room, track in sorted(_by_track(slices), key=lambda pair: (ROOMS.index(pair[0]), _natural(pair[1]))):
        if (room,) not in uuids:
            declare((room,), room, None)
        declare((room, track), track, uuids[(room,)])
    return uuids


ROOMS = ("rollout", "environment", "teacher", "learner", "publisher")


def _natural(name: str) -> tuple[int, str]:
    """Slot 2 before slot 10."""
    return len(name), name


def _fill(event: TrackEvent, what: Slice | Sample | tuple[str, str], tracks: dict) -> None:
    match what:
        case Sample():
            event.type, event.track_uuid, event.counter_value = (
                TrackEvent.TYPE_COUNTER,
                tracks[what.counter],
                what.value,
            )
        case Slice():
            event.type, event.track_uuid = TrackEvent.TYPE_SLICE_BEGIN, tracks[(what.room, what.track)]
            event.name = what.name
            event.flow_ids.extend(what.flows)
            for name, value in what.notes.items():
                note = event.debug_annotations.add()
                note.name = name
                if isinstance(value, str):
                    note.string_value = value
                elif isinstance(value, int):
                    note.int_value = value
                else:
                    note.double_value = value
        case _:
            event.type, event.track_uuid = TrackEvent.TYPE_SLICE_END, tracks[what]


def _value(note) -> str | int | float:
    return getattr(note, note.WhichOneof("value"))
