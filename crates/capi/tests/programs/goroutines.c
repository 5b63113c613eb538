/* A program in Go, recognised by a function that it exports, gets regions with handler threads only. */
#include "check.h"
#include <string.h>

void crosscall2(void);
void crosscall2(void) {}

int main(void) {
    pf_region_config config;
    pf_region *region;
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.len_bytes = config.limit_bytes = MIB;
    CHECK(pf_region_create(&config, &region) == PF_ENOTSUP && region == NULL);
    CHECK(strstr(pf_error_message(), "goroutines") != NULL);
    config.service = PF_SERVICE_HANDLER_THREADS;
    CHECK(pf_region_create(&config, &region) == PF_OK || strstr(pf_error_message(), "goroutines") == NULL);
    CHECK(pf_region_destroy(region) == PF_OK);
    return 0;
}
