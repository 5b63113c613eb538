/* Random stores, loads, discards, pins, system calls and changes of the size and the limit, by several threads,
 * compared with a plain copy of each thread's part.
 *
 *   checker SEED [fork]
 *
 * With `fork`, children are forked at random meanwhile, which use what the header allows them, or are killed.
 *
 * Each thread has the pages whose number leaves its own as the remainder, so that neighbours belong to different
 * threads. The pages behind the middle appear and vanish: a lock keeps threads out of them while they do. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, PAGE = 4096, PAGES = 3072, FIXED = PAGES / 2, STEPS = 12000 };

static pf_region *region;
static unsigned char *start, *copy;
static pthread_rwlock_t upper = PTHREAD_RWLOCK_INITIALIZER; /* the pages behind the middle */
static int is_large = 1;
static uint64_t seed;
static int file;

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void fill(unsigned char *bytes, size_t len_bytes, uint64_t kind, uint64_t *state) {
    for (size_t i = 0; i < len_bytes; i++) {
        if (kind % 4 == 0) bytes[i] = (unsigned char)next(state); /* does not compress */
        else if (kind % 4 == 1) bytes[i] = (unsigned char)kind;
        else bytes[i] = (unsigned char)(kind >> (i % 7));
    }
}

static void step(uint64_t *state, size_t page) {
    unsigned char *real = start + page * PAGE, *plain = copy + page * PAGE;
    size_t from = next(state) % PAGE, len_bytes = 1 + next(state) % (PAGE - from);
    pf_pin *pin;
    switch (next(state) % 8) {
    case 0:
    case 1:
        fill(plain + from, len_bytes, next(state), state);
        memcpy(real + from, plain + from, len_bytes);
        break;
    case 2:
        fill(plain, PAGE, next(state), state);
        memcpy(real, plain, PAGE);
        break;
    case 3:
        CHECK(pf_region_discard(region, real, PAGE) == PF_OK);
        memset(plain, 0, PAGE);
        break;
    case 4:
        CHECK(pf_region_discard(region, real + from, len_bytes) == PF_OK);
        memset(plain + from, 0, len_bytes);
        break;
    case 5:
        CHECK(pf_region_pin(region, real + from, len_bytes, &pin) == PF_OK);
        CHECK(pread(file, real + from, len_bytes, 100) == (ssize_t)len_bytes);
        CHECK(pread(file, plain + from, len_bytes, 100) == (ssize_t)len_bytes);
        CHECK(pf_unpin(pin) == PF_OK);
        break;
    case 6:
        CHECK(pf_region_advise(region, real, PAGE, (uint32_t)(next(state) % 4)) == PF_OK);
        break;
    default:
        break;
    }
    CHECK(memcmp(real, plain, PAGE) == 0);
}

static void *work(void *arg) {
    uintptr_t own = (uintptr_t)arg;
    uint64_t state = seed * 1000 + own;
    for (int i = 0; i < STEPS; i++) {
        size_t page = next(&state) % (PAGES / THREADS) * THREADS + own;
        if (page < FIXED) {
            step(&state, page);
            continue;
        }
        pthread_rwlock_rdlock(&upper);
        if (is_large) step(&state, page);
        pthread_rwlock_unlock(&upper);
    }
    return NULL;
}

static void *change(void *arg) {
    uint64_t state = seed * 1000 + 999;
    (void)arg;
    for (int i = 0; i < 60; i++) {
        pf_region_stats stats;
        usleep(5000);
        CHECK(pf_region_set_limit(region, MIB + next(&state) % (2 * MIB)) == PF_OK);
        CHECK(pf_region_get_stats(region, &stats, sizeof stats) == PF_OK && stats.faults_failed == 0);
        pthread_rwlock_wrlock(&upper);
        is_large = !is_large;
        CHECK(pf_region_resize(region, (uint64_t)PAGE * (is_large ? PAGES : FIXED)) == PF_OK);
        if (!is_large) memset(copy + FIXED * PAGE, 0, (PAGES - FIXED) * PAGE);
        pthread_rwlock_unlock(&upper);
    }
    return NULL;
}

/* What a child does: returns its exit status, unless it is killed. */
static int child(int touches) {
    pf_pin *pin;
    pf_region *own;
    CHECK(pf_region_pin(region, start, PAGE, &pin) == PF_EFORKED);
    CHECK(pf_region_set_limit(region, MIB) == PF_EFORKED);
    CHECK(pf_region_address(region) == start);
    own = make_region(2 * MIB, MIB, 0, 0);
    memset(pf_region_address(own), 7, 2 * MIB);
    for (size_t at = 0; at < 2 * MIB; at++) CHECK(((unsigned char *)pf_region_address(own))[at] == 7);
    CHECK(pf_region_destroy(own) == PF_OK);
    if (touches) {
        /* The line that says why goes to standard error. */
        CHECK(dup2(open("/dev/null", O_WRONLY), 2) == 2);
        return start[PAGE];
    }
    return 0;
}

static void fork_children(void) {
    uint64_t state = seed * 1000 + 998;
    for (int i = 0; i < 20; i++) {
        int touches = next(&state) % 4 == 0, status;
        usleep((useconds_t)(next(&state) % 10000));
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) _exit(child(touches));
        CHECK(waitpid(pid, &status, 0) == pid);
        if (touches) CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS + 1];
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    region = make_region(PAGES * PAGE, 2 * MIB, PAGES * PAGE, 0);
    start = pf_region_address(region);
    copy = calloc(PAGES, PAGE);
    file = open("/proc/self/exe", O_RDONLY);
    CHECK(copy != NULL && file >= 0);
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    CHECK(pthread_create(&threads[THREADS], NULL, change, NULL) == 0);
    if (argc > 2) fork_children();
    for (int i = 0; i <= THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(memcmp(start, copy, pf_region_len_bytes(region)) == 0);
    CHECK(pf_region_destroy(region) == PF_OK);
    free(copy);
    close(file);
    return 0;
}
