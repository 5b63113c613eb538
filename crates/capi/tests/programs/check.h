/* Assertions that stay with NDEBUG, and print what the library says. */
#ifndef CHECK_H
#define CHECK_H

#include <pagefold.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                            \
    do {                                                                                                            \
        if (!(condition)) {                                                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, pf_error_message());                 \
            exit(1);                                                                                                \
        }                                                                                                           \
    } while (0)

#define MIB ((size_t)1 << 20)

/* Makes a region with defaults. */
static inline pf_region *make_region(size_t len_bytes, size_t limit_bytes, size_t max_len_bytes, size_t pool_bytes) {
    pf_region_config config;
    pf_region *region;
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.len_bytes = len_bytes;
    config.limit_bytes = limit_bytes;
    config.max_len_bytes = max_len_bytes;
    config.max_pool_bytes = pool_bytes;
    CHECK(pf_region_create(&config, &region) == PF_OK);
    return region;
}

#endif
