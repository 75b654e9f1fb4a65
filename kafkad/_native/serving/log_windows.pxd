"""Windows: parts of log files that are mapped for reading. See log_windows.pyx."""

from libc.stdint cimport int64_t, uint8_t

from kafkad._native.log.segments cimport LogFile
from kafkad._native.serving.connection cimport Core, Timer

cdef enum:
    WINDOWS_MAX = 16
    WINDOW = 2 * 1024 * 1024        # bytes of a window: it begins at a multiple of it

cdef struct Window:
    LogFile* file                   # retained
    int64_t position
    uint8_t* data
    int64_t used                    # the number of the last use

cdef struct Windows:                # of a core
    Timer timer                     # must be the first field
    Core* core
    int64_t uses
    int64_t uses_seen               # at the last look
    int count
    Window windows[WINDOWS_MAX]

cdef Windows* windows_new(Core* core) noexcept
cdef void windows_free(Windows* windows) noexcept nogil

# Returns the window that holds `position`; NULL: use pread. A window is made if `wanted` bytes are worth one.
cdef Window* window_at(Windows* windows, LogFile* file, int64_t position, size_t wanted) noexcept nogil
# Only between these two may the bytes of a window be read. `window_leave` returns whether the bytes before the file's
# position `end` were all there. If not, zeros were read, and the window is gone.
cdef void window_enter(const Window* window) noexcept nogil
cdef bint window_leave(Windows* windows, Window* window, int64_t end) noexcept nogil
