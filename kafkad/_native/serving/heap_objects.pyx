"""Allocating the Python objects of long work in the C library's heap instead of CPython's arenas.

CPython keeps small objects in arenas of 1 MiB, and frees an arena when it is empty. Long work creates and frees a
million objects, but meanwhile the worker creates a few that stay: timers, tasks, cached tuples. A single one keeps an
arena, which adds up to dozens of MiB with 1% in use. The C library's heap returns each free page (`Reactor.trim_soon`),
so such an object keeps 4 KiB.

    before = use_heap(True)     new small objects come from malloc
    ...                         one turn of long work
    use_heap(before)            from the arenas again

This is safe because pymalloc passes allocations of more than 512 bytes to the C library, so its `free` and `realloc`
accept both kinds of memory, which they distinguish by address. Only the functions that allocate are replaced, under the
GIL, and only if pymalloc's own are installed. With a debug allocator, tracemalloc or a free-threaded build nothing
happens.

`merge_freed_blocks` makes the C library merge each freed block with its free neighbours at once. By default it keeps
blocks of up to 128 bytes in lists, and merges them all when a large block is allocated or freed: 100,000 of them in one
piece, which takes up to 0.1 s.

Beware: `sys.getallocatedblocks()` does not count a heap block when it is allocated, but counts it when it is freed."""

import os
import sys

cdef extern from "Python.h":
    """
    #if defined(WITH_PYMALLOC) && !defined(Py_GIL_DISABLED)
        #define KAFKAD_PYMALLOC 1
    #else
        #define KAFKAD_PYMALLOC 0
    #endif
    """
    bint KAFKAD_PYMALLOC
    ctypedef enum PyMemAllocatorDomain:
        PYMEM_DOMAIN_MEM
        PYMEM_DOMAIN_OBJ
    ctypedef struct PyMemAllocatorEx:
        void* ctx
        void* (*malloc)(void* ctx, size_t size) noexcept
        void* (*calloc)(void* ctx, size_t count, size_t size) noexcept
        void* (*realloc)(void* ctx, void* memory, size_t size) noexcept
        void (*free)(void* ctx, void* memory) noexcept
    void PyMem_GetAllocator(PyMemAllocatorDomain domain, PyMemAllocatorEx* allocator)
    void PyMem_SetAllocator(PyMemAllocatorDomain domain, PyMemAllocatorEx* allocator)
    void* PyMem_RawMalloc(size_t size) noexcept nogil
    void* PyMem_RawCalloc(size_t count, size_t size) noexcept nogil

cdef extern from "<malloc.h>":
    int M_MXFAST
    int mallopt(int option, int value)

cdef enum:
    DOMAINS = 2
    KEPT_MAX = 128                  # the C library's default of M_MXFAST, in bytes

cdef PyMemAllocatorDomain[DOMAINS] domains = [PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ]
cdef PyMemAllocatorEx[DOMAINS] arenas   # as CPython installed them
cdef PyMemAllocatorEx[DOMAINS] heap     # the same, except for new memory
cdef bint in_heap = False


cdef void* heap_malloc(void* ctx, size_t size) noexcept:
    return PyMem_RawMalloc(size)


cdef void* heap_calloc(void* ctx, size_t count, size_t size) noexcept:
    return PyMem_RawCalloc(count, size)


cdef void* heap_realloc(void* ctx, void* memory, size_t size) noexcept:
    if memory is NULL:
        return PyMem_RawMalloc(size)
    return arenas[0].realloc(ctx, memory, size)         # MEM and OBJ share one pymalloc


cdef bint is_pymalloc() except -1:
    """Return whether the allocators are pymalloc's, without hooks that track each block."""
    return (
        sys.implementation.name == "cpython"
        and KAFKAD_PYMALLOC
        and not hasattr(sys, "gettotalrefcount")
        and not sys.flags.dev_mode
        and os.environ.get("PYTHONMALLOC", "") in ("", "default", "pymalloc")
        and not os.environ.get("PYTHONTRACEMALLOC")
    )


cdef bint prepare() except -1:
    """Return whether `use_heap` can do anything in this process."""
    if not is_pymalloc():
        return False
    for i in range(DOMAINS):
        PyMem_GetAllocator(domains[i], &arenas[i])
        heap[i] = arenas[i]
        heap[i].malloc = heap_malloc
        heap[i].calloc = heap_calloc
        heap[i].realloc = heap_realloc
    return arenas[0].malloc == arenas[1].malloc and arenas[0].free == arenas[1].free and arenas[0].ctx == arenas[1].ctx


USABLE = prepare()


def use_heap(bint wanted):
    """Return whether the heap was in use before. Changes nothing if other code has replaced the allocator."""
    global in_heap
    cdef bint before = in_heap
    cdef PyMemAllocatorEx* current
    cdef PyMemAllocatorEx installed
    if wanted == before or not USABLE:
        return before
    current = &heap[0] if before else &arenas[0]
    for i in range(DOMAINS):
        PyMem_GetAllocator(domains[i], &installed)
        if installed.malloc != current[i].malloc or installed.free != current[i].free:
            return before
    for i in range(DOMAINS):
        PyMem_SetAllocator(domains[i], &heap[i] if wanted else &arenas[i])
    in_heap = wanted
    return before


def merge_freed_blocks(bint at_once):
    """Merge freed blocks at once in this process, or again as the C library does by default. A few freed blocks of each
    size are still kept for reuse."""
    mallopt(M_MXFAST, 0 if at_once else KEPT_MAX)
