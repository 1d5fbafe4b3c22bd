"""What every test stands on."""

from __future__ import annotations

import signal

# Started in the background by a shell, a process ignores SIGINT, and so does every process that it starts: the tests that
# interrupt programs would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
