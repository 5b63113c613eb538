/* When a region is destroyed, its memory is gone, also if another thread ends the last pin at that moment. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { ROUNDS = 200 };

static atomic_int round_now;
static _Atomic(pf_pin *) pin;

static void *unpin(void *arg) {
    for (int i = 1; i <= ROUNDS; i++) {
        while (atomic_load(&round_now) < i) {}
        for (volatile int wait = i * 97 % 20000; wait > 0; wait--) {}
        CHECK(pf_unpin(atomic_load(&pin)) == PF_OK);
    }
    return arg;
}

int main(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, unpin, NULL) == 0);
    for (int i = 1; i <= ROUNDS; i++) {
        pf_region *region = make_region(MIB, MIB, 0, 0);
        char *start = pf_region_address(region);
        pf_pin *made;
        unsigned char is_in_memory;
        int code;
        start[0] = 1;
        CHECK(pf_region_pin(region, start, 4096, &made) == PF_OK);
        atomic_store(&pin, made);
        atomic_store(&round_now, i);
        while ((code = pf_region_destroy(region)) == PF_EBUSY) {}
        CHECK(code == PF_OK && mincore(start, 4096, &is_in_memory) != 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
