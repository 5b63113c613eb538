/* A child gets PF_EFORKED from each call on a handle of its parent, and can make a region. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void in_child(pf_region *region, pf_pin *pin, pf_arena *arena, void *block) {
    pf_region_stats stats;
    pf_pin *other;
    char *start = pf_region_address(region);
    CHECK(start != NULL && pf_region_len_bytes(region) == 4 * MIB);
    CHECK(pf_region_get_stats(region, &stats, sizeof stats) == PF_EFORKED);
    CHECK(strstr(pf_error_message(), "child") != NULL);
    CHECK(pf_region_pin(region, start, 1, &other) == PF_EFORKED);
    CHECK(pf_unpin(pin) == PF_EFORKED);
    CHECK(pf_region_resize(region, 1) == PF_EFORKED);
    CHECK(pf_region_discard(region, start, 1) == PF_EFORKED);
    CHECK(pf_region_advise(region, start, 1, PF_ADVICE_RANDOM) == PF_EFORKED);
    CHECK(pf_region_set_limit(region, MIB) == PF_EFORKED);
    CHECK(pf_region_on_pressure(region, NULL, NULL) == PF_EFORKED);
    CHECK(pf_arena_malloc(arena, 8) == NULL && strstr(pf_error_message(), "child") != NULL);
    CHECK(pf_arena_realloc(arena, block, 8) == NULL && pf_arena_usable_size(arena, block) == 0);
    pf_arena_free(arena, block);
    CHECK(pf_arena_trim(arena) == PF_EFORKED && pf_arena_destroy(arena) == PF_EFORKED);
    CHECK(pf_region_destroy(region) == PF_EFORKED);
    pf_region *own = make_region(4 * MIB, MIB, 0, 0);
    memset(pf_region_address(own), 3, 4 * MIB);
    CHECK(*(char *)pf_region_address(own) == 3);
    CHECK(pf_arena_create(own, pf_region_address(own), 4 * MIB, &arena) == PF_OK);
    CHECK((block = pf_arena_malloc(arena, 100000)) != NULL);
    memset(block, 1, 100000);
    CHECK(pf_arena_destroy(arena) == PF_OK && pf_region_destroy(own) == PF_OK);
    _exit(0);
}

int main(void) {
    pf_region *region = make_region(4 * MIB, MIB, 0, 0);
    char *start = pf_region_address(region);
    pf_pin *pin;
    pf_arena *arena;
    int status;
    memset(start, 5, 4 * MIB);
    CHECK(pf_region_pin(region, start, 4096, &pin) == PF_OK);
    CHECK(pf_arena_create(region, start + MIB, 3 * MIB, &arena) == PF_OK);
    char *block = pf_arena_malloc(arena, 1000);
    CHECK(block != NULL);
    block[999] = 7;
    pid_t child = fork();
    if (child == 0) in_child(region, pin, arena, block);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(block[999] == 7 && pf_arena_destroy(arena) == PF_OK);
    CHECK(start[4096] == 5 && pf_unpin(pin) == PF_OK && pf_region_destroy(region) == PF_OK);
    return 0;
}
