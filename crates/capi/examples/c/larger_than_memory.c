/* Sorts a table four times as large as the memory that it may take.
 *
 *   cc larger_than_memory.c $(pkg-config --cflags --libs pagefold) && ./a.out [MiB]
 */
#include <inttypes.h>
#include <pagefold.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code, const char *what) {
    if (code != PF_OK) {
        fprintf(stderr, "%s: %s (%s)\n", what, pf_error_message(), pf_error_name(code));
        exit(1);
    }
}

struct record {
    uint64_t key;
    char name[56];
};

static int by_key(const void *left, const void *right) {
    uint64_t a = ((const struct record *)left)->key, b = ((const struct record *)right)->key;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    uint64_t len_bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) << 20;
    pf_region_config config;
    check(pf_region_config_init(&config, sizeof config), "config");
    config.len_bytes = len_bytes;
    config.limit_bytes = len_bytes / 4;

    pf_region *region;
    check(pf_region_create(&config, &region), "region");
    struct record *table = pf_region_address(region);
    size_t count = len_bytes / sizeof *table;

    for (size_t i = 0; i < count; i++) {
        table[i].key = i * UINT64_C(0x9e3779b97f4a7c15); /* all different, in no order */
        snprintf(table[i].name, sizeof table[i].name, "record %zu", i);
    }
    qsort(table, count, sizeof *table, by_key);
    for (size_t i = 1; i < count; i++) {
        if (table[i - 1].key >= table[i].key) return 1;
    }

    pf_region_stats stats;
    check(pf_region_get_stats(region, &stats, sizeof stats), "statistics");
    printf("sorted %zu records of %" PRIu64 " MiB\n", count, len_bytes >> 20);
    printf("resident at most %" PRIu64 " MiB; %" PRIu64 " MiB are compressed, into %" PRIu64 " MiB\n",
           stats.resident_max_bytes >> 20, stats.folded_bytes >> 20, stats.pool_bytes >> 20);
    check(pf_region_destroy(region), "destroy");
    return 0;
}
