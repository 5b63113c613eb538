/* Callbacks of pressure: of one region, two never run at once, and none of two can wait for the other. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static pf_region *regions[2], *calm;
static atomic_int running, most, calls, inside, done;

static void none(uint32_t reasons, void *arg) {
    (void)reasons;
    (void)arg;
}

static void count(uint32_t reasons, void *arg) {
    (void)reasons;
    (void)arg;
    int now = atomic_fetch_add(&running, 1) + 1;
    if (now > atomic_load(&most)) atomic_store(&most, now);
    usleep(1000);
    atomic_fetch_sub(&running, 1);
    atomic_fetch_add(&calls, 1);
}

static void *register_often(void *arg) {
    for (int i = 0; i < 20; i++) {
        CHECK(pf_region_on_pressure(regions[0], count, arg) == PF_OK);
        usleep(2000);
    }
    return NULL;
}

/* Both callbacks are running when each tries to replace the other. */
static void cross(uint32_t reasons, void *arg) {
    int other = !(intptr_t)arg;
    if (reasons == 0 || atomic_load(&done) == 2) return;
    atomic_fetch_add(&inside, 1);
    while (atomic_load(&inside) < 2) usleep(100);
    CHECK(pf_region_on_pressure(regions[other], none, NULL) == PF_EBUSY);
    CHECK(strstr(pf_error_message(), "callback") != NULL && pf_region_destroy(regions[other]) == PF_EBUSY);
    CHECK(pf_region_on_pressure(regions[!other], none, NULL) == PF_EBUSY);
    if (other) CHECK(pf_region_on_pressure(calm, none, NULL) == PF_OK && pf_region_on_pressure(calm, NULL, NULL) == PF_OK);
    atomic_fetch_add(&done, 1);
    while (atomic_load(&done) < 2) usleep(100);
}

/* Makes a region with more random bytes than its limit and its pool have space for. */
static pf_region *make_full(void) {
    pf_region *region = make_region(8 * MIB, MIB, 0, MIB);
    uint64_t *words = pf_region_address(region), state = 88172645463325252u;
    for (size_t i = 0; i < 4 * MIB / 8; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        words[i] = state ^= state << 17;
    }
    return region;
}

int main(void) {
    pthread_t threads[2];
    alarm(60);
    for (int i = 0; i < 2; i++) regions[i] = make_full();
    calm = make_region(MIB, MIB, 0, 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, register_often, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    while (atomic_load(&calls) == 0) usleep(1000);
    CHECK(pf_region_on_pressure(regions[0], NULL, NULL) == PF_OK);
    CHECK(atomic_load(&most) == 1);
    for (intptr_t i = 0; i < 2; i++) CHECK(pf_region_on_pressure(regions[i], cross, (void *)i) == PF_OK);
    while (atomic_load(&done) < 2) usleep(1000);
    for (int i = 0; i < 2; i++) CHECK(pf_region_destroy(regions[i]) == PF_OK);
    CHECK(pf_region_destroy(calm) == PF_OK);
    return 0;
}
