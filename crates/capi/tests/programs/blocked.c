/* A thread that blocks SIGBUS can neither make a region nor pin a part of one: its accesses would end the program. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <signal.h>
#include <string.h>

static void set_blocked(int how) {
    sigset_t set;
    CHECK(sigfillset(&set) == 0 && sigprocmask(how, &set, NULL) == 0);
}

int main(void) {
    pf_region_config config;
    pf_region *region, *other;
    pf_pin *pin;
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.len_bytes = config.limit_bytes = MIB;
    set_blocked(SIG_BLOCK);
    CHECK(pf_region_create(&config, &region) == PF_ENOTSUP && region == NULL);
    CHECK(strstr(pf_error_message(), "SIGBUS") != NULL && strstr(pf_error_message(), "handler threads") != NULL);
    set_blocked(SIG_UNBLOCK);
    CHECK(pf_region_create(&config, &region) == PF_OK);
    char *start = pf_region_address(region);
    start[0] = 1;
    set_blocked(SIG_BLOCK);
    CHECK(pf_region_pin(region, start, 4096, &pin) == PF_ENOTSUP && strstr(pf_error_message(), "SIGBUS") != NULL);
    /* Handler threads need no signal; they may need a privilege. */
    config.service = PF_SERVICE_HANDLER_THREADS;
    int code = pf_region_create(&config, &other);
    CHECK(code == PF_OK || strstr(pf_error_message(), "SIGBUS") == NULL);
    if (code == PF_OK) {
        memset(pf_region_address(other), 1, MIB);
        CHECK(pf_region_pin(other, pf_region_address(other), 4096, &pin) == PF_OK && pf_unpin(pin) == PF_OK);
    }
    CHECK(pf_region_destroy(other) == PF_OK);
    set_blocked(SIG_UNBLOCK);
    CHECK(pf_region_pin(region, start, 4096, &pin) == PF_OK && pf_unpin(pin) == PF_OK);
    CHECK(pf_region_destroy(region) == PF_OK);
    return 0;
}
