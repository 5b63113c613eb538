/* A full pool is reported by the callback, and so is its end. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <stdatomic.h>
#include <unistd.h>

static pf_region *region;
static atomic_uint reasons_now, calls;
static atomic_int destroyed = -1;

static void on_pressure(uint32_t reasons, void *arg) {
    CHECK(arg == &calls);
    if (atomic_fetch_add(&calls, 1) == 0) {
        /* What the callback may not do is refused, and does not hang. */
        CHECK(pf_region_on_pressure(region, NULL, NULL) == PF_EBUSY);
        atomic_store(&destroyed, pf_region_destroy(region));
        CHECK(pf_region_set_pool_limit(region, 64 * MIB, 90) == PF_OK);
    }
    atomic_store(&reasons_now, reasons);
}

static uint64_t random_word(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(void) {
    region = make_region(16 * MIB, MIB, 0, 2 * MIB);
    CHECK(pf_region_on_pressure(region, on_pressure, &calls) == PF_OK);
    uint64_t *words = pf_region_address(region);
    /* Random pages do not compress, so the pool of 2 MiB is soon full. The callback makes it larger. */
    for (int round = 0; round < 1000 && atomic_load(&calls) == 0; round++) {
        for (size_t i = 0; i < 8 * MIB / 8; i++) words[i] = random_word();
        usleep(10000);
    }
    CHECK(atomic_load(&calls) > 0 && atomic_load(&destroyed) == PF_EBUSY);
    for (int round = 0; round < 1000 && atomic_load(&reasons_now) != 0; round++) usleep(10000);
    CHECK(atomic_load(&reasons_now) == 0 && atomic_load(&calls) >= 2);
    CHECK(pf_region_on_pressure(region, on_pressure, &calls) == PF_OK);
    CHECK(pf_region_on_pressure(region, NULL, NULL) == PF_OK);
    CHECK(pf_region_on_pressure(region, on_pressure, &calls) == PF_OK);
    CHECK(pf_region_destroy(region) == PF_OK);
    return 0;
}
