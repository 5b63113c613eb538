/* Works on a table four times as large as the memory that it may take.
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
    uint64_t value, total; /* the sum of all values up to this one */
    char name[48];
};

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
        table[i].value = i % 1000;
        snprintf(table[i].name, sizeof table[i].name, "record %zu", i);
    }
    for (size_t i = 0; i < count; i++) table[i].total = table[i].value + (i == 0 ? 0 : table[i - 1].total);
    for (size_t i = 1; i < count; i += count / 1000 + 1) { /* look some up, in no order */
        const struct record *record = &table[i * UINT64_C(2654435761) % count];
        if (record->value != strtoull(record->name + 7, NULL, 10) % 1000) return 1;
    }

    pf_region_stats stats;
    check(pf_region_get_stats(region, &stats, sizeof stats), "statistics");
    printf("%zu records of %" PRIu64 " MiB, total %" PRIu64 "\n", count, len_bytes >> 20, table[count - 1].total);
    printf("resident at most %" PRIu64 " MiB; %" PRIu64 " MiB are compressed, into %" PRIu64 " MiB\n",
           stats.resident_max_bytes >> 20, stats.compressed_only_bytes >> 20, stats.pool_bytes >> 20);
    check(pf_region_destroy(region), "destroy");
    return 0;
}
