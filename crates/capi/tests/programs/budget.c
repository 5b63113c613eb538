/* Two regions share a limit; a third has none. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <string.h>
#include <unistd.h>

static pf_region *shared_region(uint64_t len_bytes, const pf_budget *budget) {
    pf_region_config config;
    pf_region *region = NULL;
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    CHECK(config.budget == NULL);
    config.len_bytes = len_bytes;
    config.budget = budget;
    CHECK(pf_region_create(&config, &region) == PF_OK);
    return region;
}

static void fill(pf_region *region, int byte) {
    memset(pf_region_address(region), byte, pf_region_len_bytes(region));
}

static void check_filled(pf_region *region, int byte) {
    const unsigned char *bytes = pf_region_address(region);
    for (size_t at = 0; at < pf_region_len_bytes(region); at += 512) CHECK(bytes[at] == byte);
}

int main(void) {
    pf_budget *budget = NULL;
    CHECK(pf_budget_create(4096, &budget) == PF_EINVAL && budget == NULL);
    CHECK(pf_budget_create(8 * MIB, NULL) == PF_EINVAL);
    CHECK(pf_budget_create(8 * MIB, &budget) == PF_OK);
    CHECK(pf_budget_limit_bytes(budget) == 8 * MIB && pf_budget_resident_bytes(budget) == 0);
    pf_region *one = shared_region(16 * MIB, budget), *two = shared_region(16 * MIB, budget);
    fill(one, 1);
    fill(two, 2);
    check_filled(one, 1);
    check_filled(two, 2);
    CHECK(pf_budget_set_limit(budget, 4 * MIB) == PF_OK && pf_budget_limit_bytes(budget) == 4 * MIB);
    for (int round = 0; round < 1000 && pf_budget_resident_bytes(budget) > 4 * MIB; round++) usleep(10000);
    CHECK(pf_budget_resident_bytes(budget) <= 4 * MIB);
    CHECK(pf_budget_set_limit(budget, 1) == PF_EINVAL && pf_budget_set_limit(NULL, 4 * MIB) == PF_EINVAL);
    /* The regions do not need the handle. */
    CHECK(pf_budget_destroy(budget) == PF_OK && pf_budget_destroy(NULL) == PF_OK);
    check_filled(one, 1);
    CHECK(pf_region_destroy(one) == PF_OK);
    check_filled(two, 2);
    CHECK(pf_region_destroy(two) == PF_OK);

    CHECK(pf_budget_create(512 << 10, &budget) == PF_OK);
    one = shared_region(MIB, budget);
    two = shared_region(MIB, budget);
    pf_region_config config;
    pf_region *third = NULL;
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.len_bytes = MIB;
    config.budget = budget;
    CHECK(pf_region_create(&config, &third) == PF_ENOMEM && third == NULL);
    CHECK(strstr(pf_error_message(), "2 regions") != NULL);
    CHECK(pf_region_destroy(one) == PF_OK && pf_region_destroy(two) == PF_OK);
    CHECK(pf_budget_destroy(budget) == PF_OK);

    CHECK(pf_budget_create(0, &budget) == PF_OK);
    CHECK(pf_budget_limit_bytes(budget) > 0);
    one = shared_region(16 * MIB, budget);
    fill(one, 3);
    check_filled(one, 3);
    CHECK(pf_region_destroy(one) == PF_OK && pf_budget_destroy(budget) == PF_OK);
    CHECK(pf_budget_limit_bytes(NULL) == 0 && pf_budget_resident_bytes(NULL) == 0);
    return 0;
}
