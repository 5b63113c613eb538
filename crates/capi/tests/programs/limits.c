/* What a process may not have for a region is named, by the limit that is to be raised. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void set_limit(int resource, rlim_t value) {
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = value;
    CHECK(setrlimit(resource, &limit) == 0);
}

static int create(size_t len_bytes, uint32_t service) {
    pf_region_config config;
    pf_region *region;
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.len_bytes = len_bytes;
    config.limit_bytes = MIB;
    config.service = service;
    config.handler_threads = 1;
    config.fold_threads = 1;
    int code = pf_region_create(&config, &region);
    CHECK(pf_region_destroy(region) == PF_OK);
    return code;
}

static void descriptors(uint32_t service) {
    struct rlimit before;
    int used = dup(0), refused = 0;
    CHECK(used >= 0 && close(used) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    for (;; refused++) {
        set_limit(RLIMIT_NOFILE, (rlim_t)(used + refused));
        int code = create(4 * MIB, service);
        if (code == PF_OK) break;
        CHECK(code == PF_ESYSTEM && refused < 64);
        CHECK(strstr(pf_error_message(), "RLIMIT_NOFILE") != NULL && strstr(pf_error_message(), "thread:") == NULL);
        CHECK(strstr(pf_error_message(), "RLIMIT_NPROC") == NULL);
    }
    CHECK(refused > (service == PF_SERVICE_HANDLER_THREADS));
    set_limit(RLIMIT_NOFILE, before.rlim_cur);
}

static void addresses(void) {
    unsigned long pages;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm != NULL && fscanf(statm, "%lu", &pages) == 1 && fclose(statm) == 0);
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    set_limit(RLIMIT_AS, pages * 4096 + 64 * MIB);
    CHECK(create(1024 * MIB, PF_SERVICE_FAULTING_THREAD) == PF_ENOMEM);
    CHECK(strstr(pf_error_message(), "RLIMIT_AS") != NULL);
    /* The range has space, and the store's memory has none. */
    set_limit(RLIMIT_AS, pages * 4096 + 96 * MIB);
    CHECK(create(64 * MIB, PF_SERVICE_FAULTING_THREAD) == PF_ENOMEM);
    CHECK(strstr(pf_error_message(), "RLIMIT_AS") != NULL);
    set_limit(RLIMIT_AS, before.rlim_cur);
    CHECK(create(64 * MIB, PF_SERVICE_FAULTING_THREAD) == PF_OK);
}

int main(void) {
    descriptors(PF_SERVICE_FAULTING_THREAD);
    if (create(MIB, PF_SERVICE_HANDLER_THREADS) == PF_OK) descriptors(PF_SERVICE_HANDLER_THREADS);
    addresses();
    return 0;
}
