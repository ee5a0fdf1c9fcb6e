"""SIGTERM and SIGINT, heard at once: a main thread that waits in a collective would hear neither."""

import signal
import socket
import threading
from collections.abc import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def watch_signals(respond: Callable[[signal.Signals], None]) -> None:
    """Call ``respond`` from a thread of its own when this process is told to end. Call from the main thread.

    Python runs handlers in the main thread and only between two of its own instructions, so never while a collective
    waits for a rank that is gone. What arrives is written to a socket at once, whatever handlers are set later:
    Lightning's note the signal, and a run that one of them ended would have exit code 0.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen() -> None:
        while arrived := receiver.recv(1):
            if arrived[0] in SIGNALS:
                respond(signal.Signals(arrived[0]))

    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    threading.Thread(target=listen, daemon=True, name="signal watch").start()
