"""What a process of kafkad tells Linux about itself: its name, that it ends with its parent, and that it has started.

A start runs much code only once: it imports modules, reads configuration, recovers logs. Later, most pages of that code
are mapped and not used, about 15 MB. `forget_code` unmaps the pages of all libraries that nothing has written to. They
stay in the page cache; a page that is used again is mapped again, 16 at a time, in less than a microsecond.

Beware: a debugger's breakpoint is written into a page of code, and would be lost with it. A library with text relocations
(DT_TEXTREL) has written to its code, too, and is left alone."""

from libc.errno cimport errno

cdef extern from * nogil:
    """
    #define _GNU_SOURCE
    #include <elf.h>
    #include <link.h>
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <sys/prctl.h>
    #include <unistd.h>

    static int kafkad_writes_to_code(const struct dl_phdr_info* info, const ElfW(Phdr)* dynamic) {
        const ElfW(Dyn)* entry = (const ElfW(Dyn)*)(info->dlpi_addr + dynamic->p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++)
            if (entry->d_tag == DT_TEXTREL || (entry->d_tag == DT_FLAGS && (entry->d_un.d_val & DF_TEXTREL)))
                return 1;
        return 0;
    }

    /* Only whole pages, so a page that a writable segment shares is never among them. */
    static int kafkad_forget_segments(struct dl_phdr_info* info, size_t size, void* told) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        int i;
        (void)size;
        for (i = 0; i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_DYNAMIC && kafkad_writes_to_code(info, &info->dlpi_phdr[i]))
                return 0;
        for (i = 0; i < info->dlpi_phnum; i++) {
            const ElfW(Phdr)* segment = &info->dlpi_phdr[i];
            uintptr_t start, end;
            if (segment->p_type != PT_LOAD || (segment->p_flags & PF_W))
                continue;
            start = (info->dlpi_addr + segment->p_vaddr + page - 1) / page * page;
            end = (info->dlpi_addr + segment->p_vaddr + segment->p_memsz) / page * page;
            if (start < end && madvise((void*)start, end - start, MADV_DONTNEED) == 0)
                *(size_t*)told += end - start;
        }
        return 0;
    }
    static size_t kafkad_forget_code(void) {
        size_t told = 0;
        dl_iterate_phdr(kafkad_forget_segments, &told);
        return told;
    }
    static int kafkad_die_with_parent(int number) { return prctl(PR_SET_PDEATHSIG, number, 0, 0, 0); }
    static int kafkad_set_name(const char* name) { return prctl(PR_SET_NAME, (uintptr_t)name, 0, 0, 0); }
    """
    size_t kafkad_forget_code()
    int kafkad_die_with_parent(int number)
    int kafkad_set_name(const char* name)


def forget_code() -> int:
    """Unmap the pages of code and constants of all libraries. Return how many bytes they span, mapped or not."""
    return kafkad_forget_code()


def die_with_parent(int number) -> None:
    """Let the kernel send this process a signal when its parent has ended. Beware: the parent may have ended before."""
    if kafkad_die_with_parent(number) != 0:
        raise OSError(errno, "prctl(PR_SET_PDEATHSIG)")


def set_name(bytes name) -> None:
    """Set the name of this thread, as `ps` and `top` show it; of a longer one the first 15 bytes."""
    if kafkad_set_name(name) != 0:
        raise OSError(errno, "prctl(PR_SET_NAME)")
