"""A clock that moves only when a test moves it."""

from __future__ import annotations

MICROSECONDS = 1_000_000


class FakeClock:
    """Wall and boot clock of one machine, in integer microseconds, as `strictq.open(clock=...)` wants them.

    `advance` is time going by; `jump_wall` is somebody setting the wall clock; `reboot` starts the boot clock anew.
    """

    def __init__(self, wall: int = 1_700_000_000 * MICROSECONDS, boot: int = 5_000 * MICROSECONDS) -> None:
        self._wall = wall
        self._boot = boot
        self._boots = 1

    def wall(self) -> int:
        """Microseconds since 1970; may have been set wrongly."""
        return self._wall

    def boot(self) -> int:
        """Microseconds since this boot."""
        return self._boot

    def boot_id(self) -> str:
        """The name of this boot."""
        return f"fake-boot-{self._boots}"

    def advance(self, seconds: float) -> None:
        """Let time go by: both clocks move."""
        assert seconds >= 0.0, "time does not run backwards; see jump_wall"
        step = round(seconds * MICROSECONDS)
        self._wall += step
        self._boot += step

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back; the boot clock does not notice."""
        self._wall += round(seconds * MICROSECONDS)

    def reboot(self, down_seconds: float = 0.0) -> None:
        """Restart the machine: the boot clock begins again under a new boot id, the wall clock goes on."""
        self._wall += round(down_seconds * MICROSECONDS)
        self._boot = MICROSECONDS
        self._boots += 1
