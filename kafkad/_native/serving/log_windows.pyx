"""Windows: parts of log files that are mapped for reading, so that OpenSSL reads the page cache itself.

A `pread` of bytes that no cache of the CPU holds costs more than the encryption of these bytes. A read of the mapped
bytes costs half of that. So long regions are encrypted straight from a window, a mapped part of the file.

**Missing bytes.** Another process may cut a file while its bytes are read, and a disk may fail. Reading a mapped byte
that is not there is a SIGBUS. Its handler (log_windows.h) maps zeros there, notes this, and the read goes on. A file
that ends within a page reads as zeros after its end. So after each use, and before the bytes are sent, `window_leave`
checks the note and the file's size.

**Memory and files.** A core has at most WINDOWS_MAX windows. A window that is not used for 100 ms is
unmapped, so that a removed file does not keep its blocks, and pages do not count as the worker's memory for longer.

Beware: mapped bytes change when the owner cuts the file and writes other bytes there. A record then has some of either,
as after a pread. It is a valid record all the same: its tag is of the encrypted bytes."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from kafkad._native.log.segments cimport LogFile, log_file_release, log_file_retain
from kafkad._native.serving.connection cimport Core, Timer
from kafkad._native.serving.timers cimport timer_start
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef extern from "log_windows.h" nogil:
    uint8_t* kafkad_map_log(int fd, int64_t position, size_t size)
    bint kafkad_mapped_read_begin(const uint8_t* start, size_t size)
    bint kafkad_mapped_read_end()
    bint kafkad_file_reaches(int fd, int64_t end)
    int munmap(void* address, size_t size)

cdef enum:
    WORTH_A_WINDOW = 32 * 1024      # bytes to send: a window costs as much as the pread of 32 KB

cdef int64_t idle_ms = 100


def set_idle_ms(int64_t ms):
    """Unmap windows that are not used for so long (for tests)."""
    global idle_ms
    idle_ms = ms


cdef Windows* windows_new(Core* core) noexcept:
    cdef Windows* windows = <Windows*>calloc(1, sizeof(Windows))
    KAFKAD_CHECK(windows is not NULL)
    windows.core = core
    windows.timer.place = -1
    return windows


cdef void windows_free(Windows* windows) noexcept nogil:
    while windows.count:
        window_close(windows, &windows.windows[0])
    free(windows)


cdef void window_close(Windows* windows, Window* window) noexcept nogil:
    munmap(window.data, WINDOW)
    log_file_release(window.file)
    windows.count -= 1
    window[0] = windows.windows[windows.count]


cdef void look(Core* core, Timer* timer) noexcept nogil:
    """Close the windows that were not used since the last look."""
    cdef Windows* windows = <Windows*>timer
    cdef int i = 0
    while i < windows.count:
        if windows.windows[i].used <= windows.uses_seen:
            window_close(windows, &windows.windows[i])
        else:
            i += 1
    windows.uses_seen = windows.uses
    if windows.count:
        timer_start(core, timer, core.monotonic_ms + idle_ms, look)


cdef Window* window_at(Windows* windows, LogFile* file, int64_t position, size_t wanted) noexcept nogil:
    cdef int64_t start = position - position % WINDOW
    cdef Window* window
    cdef Window* oldest = &windows.windows[0]
    cdef uint8_t* data
    cdef int i
    windows.uses += 1
    for i in range(windows.count):
        window = &windows.windows[i]
        if window.file is file and window.position == start:
            window.used = windows.uses
            return window
        if window.used < oldest.used:
            oldest = window
    if wanted < WORTH_A_WINDOW:
        return NULL
    data = kafkad_map_log(file.fd, start, WINDOW)
    if data is NULL:
        return NULL
    if windows.count == WINDOWS_MAX:
        window_close(windows, oldest)
    if windows.timer.place < 0:
        timer_start(windows.core, &windows.timer, windows.core.monotonic_ms + idle_ms, look)
    window = &windows.windows[windows.count]
    windows.count += 1
    log_file_retain(file)
    window.file = file
    window.position = start
    window.data = data
    window.used = windows.uses
    return window


cdef void window_enter(const Window* window) noexcept nogil:
    KAFKAD_CHECK(kafkad_mapped_read_begin(window.data, WINDOW))


cdef bint window_leave(Windows* windows, Window* window, int64_t end) noexcept nogil:
    if kafkad_mapped_read_end() and kafkad_file_reaches(window.file.fd, end):
        return True
    window_close(windows, window)
    return False
