"""What a target's scheduler hands to the compile driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from plow.packet.container import ProgramRecord
from plow.schedule.arena import WeightSegment


@dataclass
class Laid:
    """A target's programs and arena. segments: name -> (offset, bytes); header: more entries of the packet header."""

    weights: WeightSegment
    segments: dict[str, tuple[int, int]]
    programs: list[ProgramRecord]
    nodes: list[str]
    header: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return max(a + n for a, n in self.segments.values())
