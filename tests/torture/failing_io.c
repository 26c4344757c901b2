/* Preloaded into a process: the N-th operation that changes a file below FAULT_FOLDER fails, or kills the process.

   FAULT_AT     which one, counted from 1; 0 fails none
   FAULT_HOW    an errno, or "kill": half of a write is done first, then the process dies at once
   FAULT_REACHED  a file that is made when it happens
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define MOST 4096
static atomic_int done;
static char ours[MOST];

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static int below(const char *path) {
    const char *folder = getenv("FAULT_FOLDER");
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static void note(void) {
    const char *path = getenv("FAULT_REACHED");
    int file = path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT, 0600) : -1;
    if (file >= 0) syscall(SYS_close, file);
}

/* Is it this one? Then errno is set, unless the process dies here. */
static int fails(int file, const void *data, size_t size, off_t at) {
    const char *wanted = getenv("FAULT_AT"), *how = getenv("FAULT_HOW");
    int number = atomic_fetch_add(&done, 1) + 1;
    if (!wanted || !how || number != atoi(wanted)) return 0;
    note();
    if (strcmp(how, "kill") == 0) {
        if (data && at < 0 && syscall(SYS_write, file, data, size / 2) < 0) abort();
        if (data && at >= 0 && syscall(SYS_pwrite64, file, data, size / 2, at) < 0) abort();
        raise(SIGKILL);
    }
    errno = atoi(how);
    return 1;
}

static int opened(int file, const char *path) {
    if (file >= 0 && file < MOST) ours[file] = below(path);
    return file;
}

static int refused(const char *path, int flags) {
    return below(path) && (flags & (O_CREAT | O_WRONLY | O_RDWR)) && fails(-1, NULL, 0, -1);
}

#define OPENS(name)                                                                  \
    int name(const char *path, int flags, ...) {                                     \
        va_list more;                                                                \
        va_start(more, flags);                                                       \
        int mode = va_arg(more, int);                                                \
        va_end(more);                                                                \
        if (refused(path, flags)) return -1;                                         \
        return opened(REAL(int, #name, const char *, int, ...)(path, flags, mode), path); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                               \
    int name(int folder, const char *path, int flags, ...) {                         \
        va_list more;                                                                \
        va_start(more, flags);                                                       \
        int mode = va_arg(more, int);                                                \
        va_end(more);                                                                \
        if (refused(path, flags)) return -1;                                         \
        return opened(REAL(int, #name, int, const char *, int, ...)(folder, path, flags, mode), path); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

static int is_ours(int file) { return file >= 0 && file < MOST && ours[file]; }

int close(int file) {
    if (file >= 0 && file < MOST) ours[file] = 0;
    return REAL(int, "close", int)(file);
}

ssize_t write(int file, const void *data, size_t size) {
    if (is_ours(file) && fails(file, data, size, -1)) return -1;
    return REAL(ssize_t, "write", int, const void *, size_t)(file, data, size);
}

#define WRITES_AT(name)                                                              \
    ssize_t name(int file, const void *data, size_t size, off_t at) {                \
        if (is_ours(file) && fails(file, data, size, at)) return -1;                 \
        return REAL(ssize_t, #name, int, const void *, size_t, off_t)(file, data, size, at); \
    }
WRITES_AT(pwrite)
WRITES_AT(pwrite64)

#define SYNCS(name)                                                                  \
    int name(int file) {                                                             \
        if (is_ours(file) && fails(file, NULL, 0, -1)) return -1;                    \
        return REAL(int, #name, int)(file);                                          \
    }
SYNCS(fsync)
SYNCS(fdatasync)

#define CUTS(name)                                                                   \
    int name(int file, off_t size) {                                                 \
        if (is_ours(file) && fails(file, NULL, 0, -1)) return -1;                    \
        return REAL(int, #name, int, off_t)(file, size);                             \
    }
CUTS(ftruncate)
CUTS(ftruncate64)

int rename(const char *from, const char *to) {
    if ((below(from) || below(to)) && fails(-1, NULL, 0, -1)) return -1;
    return REAL(int, "rename", const char *, const char *)(from, to);
}

int unlink(const char *path) {
    if (below(path) && fails(-1, NULL, 0, -1)) return -1;
    return REAL(int, "unlink", const char *)(path);
}
