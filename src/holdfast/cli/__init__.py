"""The `holdfast` command.

A broker must not be ended by a signal that comes while its command line is still being loaded, so its signals
are held before anything else is imported.
"""

import sys

from holdfast.runtime.signals import hold_signals

if sys.argv[1:2] == ["broker"]:
    hold_signals()
