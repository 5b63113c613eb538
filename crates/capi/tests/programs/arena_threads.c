/* Threads share an arena: blocks of one are freed by another. They begin and end often, and arenas are destroyed while
 * threads live that used them. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>
#include <string.h>

enum { THREADS = 4, SLOTS = 512, ROUNDS = 6, STEPS = 4000 };

static pf_arena *arena;
static struct {
    pthread_mutex_t lock;
    unsigned char *block;
    size_t size;
    unsigned char byte;
} slots[SLOTS];
static pthread_barrier_t barrier;

static void *work(void *arg) {
    uint64_t state = (uintptr_t)arg * 88172645463325252u + 1;
    for (int step = 0; step < STEPS; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t slot = (state >> 33) % SLOTS;
        size_t size = (size_t)1 << (state >> 20) % 17;
        size += (state >> 40) % size;
        pthread_mutex_lock(&slots[slot].lock);
        if (slots[slot].block != NULL) {
            for (size_t i = 0; i < slots[slot].size; i += 61) CHECK(slots[slot].block[i] == slots[slot].byte);
            pf_arena_free(arena, slots[slot].block);
            slots[slot].block = NULL;
        } else {
            slots[slot].block = pf_arena_malloc(arena, size);
            CHECK(slots[slot].block != NULL);
            slots[slot].size = size;
            slots[slot].byte = (unsigned char)state;
            memset(slots[slot].block, slots[slot].byte, size);
        }
        pthread_mutex_unlock(&slots[slot].lock);
    }
    return NULL;
}

/* Uses an arena, waits until it has been destroyed, and ends. */
static void *outlive(void *arg) {
    (void)arg;
    for (int i = 0; i < 100; i++) pf_arena_free(arena, pf_arena_malloc(arena, 100));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS], outliving;
    pf_region *region = make_region(256 * MIB, 4 * MIB, 0, 0);
    for (int i = 0; i < SLOTS; i++) pthread_mutex_init(&slots[i].lock, NULL);
    pthread_barrier_init(&barrier, NULL, 2);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(pf_arena_create(region, pf_region_address(region), 256 * MIB, &arena) == PF_OK);
        CHECK(pthread_create(&outliving, NULL, outlive, NULL) == 0);
        for (int part = 0; part < 2; part++) {
            for (uintptr_t i = 0; i < THREADS; i++)
                CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 10 * (uintptr_t)round + 1)) == 0);
            for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        }
        pthread_barrier_wait(&barrier);
        CHECK(pf_arena_destroy(arena) == PF_OK);
        pthread_barrier_wait(&barrier);
        pthread_join(outliving, NULL);
        for (int i = 0; i < SLOTS; i++) slots[i].block = NULL;
    }
    CHECK(pf_region_destroy(region) == PF_OK);
    return 0;
}
