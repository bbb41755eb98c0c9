/* Makes writes fail on paths that a test names, as a full or broken disk does. Preloaded (LD_PRELOAD) by processes under test.

   CHIPLOG_FAULTS names a file of rules, mapped here: a test changes it while the process runs. One rule is 512 bytes:

       offset  size  field
            0     4  operations   bits, below; 0: no rule
            4     4  error        errno; 0: write half of it
            8     4  skip         matching calls that still succeed
           12     4  times        how many fail then; -1: all
           16     4  hits         calls that failed, counted here
           20     4  delay        ms; not 0: the call succeeds, so much later
           24   232  below        beginning of the paths that are meant
          256   256  part         required part of the path; empty: anything                                           */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, ALLOCATE = 8, TRUNCATE = 16, RENAME = 32, MKDIR = 64, UNLINK = 128, BIND = 256 };
enum { RULES = 8 };

struct rule {
    unsigned operations, error;
    int skip, times, hits, delay_ms;
    char below[232], part[256];
};

static struct rule *rules;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CHIPLOG_FAULTS");
    int descriptor = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *page = mmap(NULL, RULES * sizeof(struct rule), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (page != MAP_FAILED) rules = page;
}

/* Returns 0 to go on, -1 to fail with errno, 1 to write half. */
static int verdict(unsigned operation, const char *path) {
    for (int n = 0; n < RULES; n++) {
        struct rule *rule = &rules[n];
        if (!(rule->operations & operation) || strncmp(path, rule->below, strlen(rule->below))) continue;
        if (rule->part[0] && !strstr(path, rule->part)) continue;
        if (rule->times == 0) continue;
        if (rule->skip > 0) {
            __atomic_sub_fetch(&rule->skip, 1, __ATOMIC_SEQ_CST);
            continue;
        }
        if (rule->times > 0) __atomic_sub_fetch(&rule->times, 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&rule->hits, 1, __ATOMIC_SEQ_CST);
        if (rule->delay_ms) {
            struct timespec left = {rule->delay_ms / 1000, rule->delay_ms % 1000 * 1000000L};
            while (nanosleep(&left, &left) && errno == EINTR);
            return 0;
        }
        if (!rule->error) return 1;
        errno = (int)rule->error;
        return -1;
    }
    return 0;
}

static int of_path(unsigned operation, int directory, const char *path) {
    char whole[PATH_MAX * 2], link[64];
    if (!rules || !path) return 0;
    if (path[0] == '/') return verdict(operation, path);
    if (directory == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, whole, PATH_MAX - 1);
    if (length < 0) return 0;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return verdict(operation, whole);
}

static int of_descriptor(unsigned operation, int descriptor) {
    char link[64], path[PATH_MAX];
    if (!rules) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int before = errno;
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0 || path[0] != '/') return 0;
    path[length] = 0;
    return verdict(operation, path);
}

#define REAL(name) (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* -- opening ------------------------------------------------------------------------------------------------------ */

#define OPENING(name)                                                                                                  \
    int name(const char *path, int flags, ...) {                                                                       \
        static int (*real)(const char *, int, ...);                                                                    \
        if (!real) real = REAL(name);                                                                                  \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = va_arg(list, mode_t);                                                                            \
        va_end(list);                                                                                                  \
        if ((flags & O_CREAT) && of_path(OPEN, AT_FDCWD, path) < 0) return -1;                                         \
        return real(path, flags, mode);                                                                                \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name)                                                                                               \
    int name(int directory, const char *path, int flags, ...) {                                                        \
        static int (*real)(int, const char *, int, ...);                                                               \
        if (!real) real = REAL(name);                                                                                  \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = va_arg(list, mode_t);                                                                            \
        va_end(list);                                                                                                  \
        if ((flags & O_CREAT) && of_path(OPEN, directory, path) < 0) return -1;                                        \
        return real(directory, path, flags, mode);                                                                     \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

/* -- writing: what is cut short writes half, at least one byte ----------------------------------------------------- */

ssize_t write(int descriptor, const void *data, size_t size) {
    static __typeof__(&write) real;
    if (!real) real = REAL(write);
    int found = of_descriptor(WRITE, descriptor);
    return found < 0 ? -1 : real(descriptor, data, found && size > 1 ? size / 2 : size);
}

#define WRITING_AT(name, offset_type)                                                                                  \
    ssize_t name(int descriptor, const void *data, size_t size, offset_type offset) {                                  \
        static __typeof__(&name) real;                                                                                 \
        if (!real) real = REAL(name);                                                                                  \
        int found = of_descriptor(WRITE, descriptor);                                                                  \
        return found < 0 ? -1 : real(descriptor, data, found && size > 1 ? size / 2 : size, offset);                   \
    }
WRITING_AT(pwrite, off_t)
WRITING_AT(pwrite64, off64_t)

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    static __typeof__(&writev) real;
    if (!real) real = REAL(writev);
    int found = of_descriptor(WRITE, descriptor);
    if (found < 0) return -1;
    if (found && count > 1) return real(descriptor, parts, count / 2);
    if (found && count == 1 && parts[0].iov_len > 1) {
        struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2};
        return real(descriptor, &half, 1);
    }
    return real(descriptor, parts, count);
}

/* -- the rest ------------------------------------------------------------------------------------------------------ */

#define ON_DESCRIPTOR(operation, name, parameters, arguments)                                                          \
    int name parameters {                                                                                              \
        static __typeof__(&name) real;                                                                                 \
        if (!real) real = REAL(name);                                                                                  \
        return of_descriptor(operation, descriptor) < 0 ? -1 : real arguments;                                         \
    }
ON_DESCRIPTOR(SYNC, fsync, (int descriptor), (descriptor))
ON_DESCRIPTOR(SYNC, fdatasync, (int descriptor), (descriptor))
ON_DESCRIPTOR(TRUNCATE, ftruncate, (int descriptor, off_t size), (descriptor, size))
ON_DESCRIPTOR(TRUNCATE, ftruncate64, (int descriptor, off64_t size), (descriptor, size))
ON_DESCRIPTOR(ALLOCATE, fallocate, (int descriptor, int mode, off_t offset, off_t size), (descriptor, mode, offset, size))
ON_DESCRIPTOR(ALLOCATE, fallocate64, (int descriptor, int mode, off64_t offset, off64_t size),
              (descriptor, mode, offset, size))

int posix_fallocate(int descriptor, off_t offset, off_t size) {
    static __typeof__(&posix_fallocate) real;
    if (!real) real = REAL(posix_fallocate);
    return of_descriptor(ALLOCATE, descriptor) < 0 ? errno : real(descriptor, offset, size);
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t size) {
    static __typeof__(&posix_fallocate64) real;
    if (!real) real = REAL(posix_fallocate64);
    return of_descriptor(ALLOCATE, descriptor) < 0 ? errno : real(descriptor, offset, size);
}

#define ON_PATH(operation, directory, name, parameters, arguments)                                                     \
    int name parameters {                                                                                              \
        static __typeof__(&name) real;                                                                                 \
        if (!real) real = REAL(name);                                                                                  \
        return of_path(operation, directory, path) < 0 ? -1 : real arguments;                                          \
    }
ON_PATH(TRUNCATE, AT_FDCWD, truncate, (const char *path, off_t size), (path, size))
ON_PATH(TRUNCATE, AT_FDCWD, truncate64, (const char *path, off64_t size), (path, size))
ON_PATH(RENAME, AT_FDCWD, rename, (const char *path, const char *to), (path, to))
ON_PATH(RENAME, from, renameat, (int from, const char *path, int to, const char *name), (from, path, to, name))
ON_PATH(MKDIR, AT_FDCWD, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(MKDIR, directory, mkdirat, (int directory, const char *path, mode_t mode), (directory, path, mode))
ON_PATH(UNLINK, AT_FDCWD, unlink, (const char *path), (path))
ON_PATH(UNLINK, AT_FDCWD, rmdir, (const char *path), (path))
ON_PATH(UNLINK, directory, unlinkat, (int directory, const char *path, int flags), (directory, path, flags))

int bind(int descriptor, const struct sockaddr *address, socklen_t size) {
    static __typeof__(&bind) real;
    if (!real) real = REAL(bind);
    if (address->sa_family == AF_UNIX && of_path(BIND, AT_FDCWD, ((const struct sockaddr_un *)address)->sun_path) < 0)
        return -1;
    return real(descriptor, address, size);
}
