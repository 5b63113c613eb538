/* Each call on regions and pins, with its errors. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void configurations_of_any_version(void) {
    struct {
        pf_region_config known;
        uint64_t later;
    } config;
    pf_region *region = NULL;
    CHECK(pf_region_config_init(&config.known, sizeof config) == PF_OK);
    CHECK(config.known.size_bytes == sizeof config && config.later == 0);
    CHECK(config.known.max_pool_percent == 0 && config.known.neighbours == 1);
    config.known.len_bytes = MIB;
    config.known.limit_bytes = MIB;
    CHECK(pf_region_create(&config.known, &region) == PF_OK);
    CHECK(pf_region_destroy(region) == PF_OK);
    config.later = 1;
    CHECK(pf_region_create(&config.known, &region) == PF_EINVAL && region == NULL);
    CHECK(strstr(pf_error_message(), "does not know") != NULL);
    /* An older program has a shorter struct. */
    size_t older = offsetof(pf_region_config, codec);
    memset(&config, 0xff, sizeof config);
    CHECK(pf_region_config_init(&config.known, older) == PF_OK);
    CHECK(config.known.size_bytes == older && config.known.codec_level == -1);
    config.known.len_bytes = MIB;
    config.known.limit_bytes = MIB;
    CHECK(pf_region_create(&config.known, &region) == PF_OK);
    CHECK(pf_region_destroy(region) == PF_OK);
    config.known.size_bytes = 8;
    CHECK(pf_region_create(&config.known, &region) == PF_EINVAL);
}

static int create_with(const char *codec, uint32_t service, uint32_t percent, uint64_t limit_bytes) {
    pf_region_config config;
    pf_region *region;
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.len_bytes = MIB;
    config.limit_bytes = limit_bytes;
    config.codec = codec;
    config.service = service;
    config.max_pool_percent = percent;
    int code = pf_region_create(&config, &region);
    CHECK(pf_region_destroy(region) == PF_OK);
    return code;
}

static void bad_settings(void) {
    CHECK(create_with("zstd", PF_SERVICE_FAULTING_THREAD, 20, MIB) == PF_OK);
    CHECK(create_with("none", PF_SERVICE_FAULTING_THREAD, 20, MIB) == PF_EINVAL);
    CHECK(create_with(NULL, 7, 20, MIB) == PF_EINVAL);
    CHECK(create_with(NULL, PF_SERVICE_FAULTING_THREAD, 300, MIB) == PF_EINVAL);
    CHECK(strstr(pf_error_message(), "max_pool_percent") != NULL);
    CHECK(strstr(pf_error_message(), "not 300") != NULL);
    CHECK(create_with(NULL, PF_SERVICE_FAULTING_THREAD, 20, 4096) == PF_EINVAL);
    CHECK(strstr(pf_error_message(), "256 KiB") != NULL);
    CHECK(pf_region_create(NULL, NULL) == PF_EINVAL);
    pf_region_config config;
    pf_region *region;
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.len_bytes = 8 * MIB;
    config.limit_bytes = MIB;
    config.max_len_bytes = 4 * MIB;
    CHECK(pf_region_create(&config, &region) == PF_EINVAL && region == NULL);
    CHECK(strstr(pf_error_message(), "8 MiB") != NULL && strstr(pf_error_message(), "max_len_bytes") != NULL);
    config.max_len_bytes = 0;
    config.no_system_calls = 1;
    CHECK(pf_region_create(&config, &region) == PF_OK && pf_region_destroy(region) == PF_OK);
    CHECK(pf_region_config_init(NULL, sizeof(pf_region_config)) == PF_EINVAL);
    CHECK(strcmp(pf_error_name(PF_EINVAL), "PF_EINVAL") == 0 && strcmp(pf_error_name(99), "unknown code") == 0);
    CHECK(pf_region_destroy(NULL) == PF_OK && pf_unpin(NULL) == PF_OK);
    CHECK(pf_region_address(NULL) == NULL && pf_region_len_bytes(NULL) == 0);
    CHECK(pf_region_resize(NULL, 1) == PF_EINVAL);
}

static void pins_and_parts(void) {
    pf_region *region = make_region(16 * MIB, 2 * MIB, 64 * MIB, 0);
    char *start = pf_region_address(region);
    pf_pin *pin, *other;
    int fd = open("/dev/zero", O_RDONLY);
    CHECK(fd >= 0 && pf_region_len_bytes(region) == 16 * MIB);
    memset(start, 1, 16 * MIB);
    /* The first pages have been compressed: a system call needs a pin. */
    CHECK(read(fd, start, 4096) == -1);
    CHECK(pf_region_pin(region, start, 2 * MIB, &pin) == PF_ELIMIT && pin == NULL);
    CHECK(strstr(pf_error_message(), "512 pages") != NULL && strstr(pf_error_message(), "256, half") != NULL);
    CHECK(pf_region_pin(region, start, 4097, &pin) == PF_OK);
    CHECK(read(fd, start, 4097) == 4097 && start[4096] == 0 && start[4097] == 1);
    CHECK(pf_region_pin(region, start + 4096, 1, &other) == PF_OK);
    CHECK(pf_region_destroy(region) == PF_EBUSY);
    CHECK(pf_region_discard(region, start + 4096, 4096) == PF_EPINNED);
    CHECK(pf_unpin(other) == PF_OK);
    CHECK(pf_region_resize(region, 4096) == PF_EPINNED && pf_region_len_bytes(region) == 16 * MIB);
    CHECK(pf_unpin(pin) == PF_OK);
    CHECK(pf_region_pin(region, start, 2 * MIB, &pin) == PF_ELIMIT && pin == NULL);
    CHECK(pf_region_pin(region, start - 1, 2, &pin) == PF_ERANGE);
    CHECK(pf_region_pin(region, start + 16 * MIB, 1, &pin) == PF_ERANGE);
    CHECK(pf_region_discard(region, start, SIZE_MAX) == PF_ERANGE);
    CHECK(pf_region_discard(region, NULL, 0) == PF_OK);
    CHECK(pf_region_discard(region, start + MIB + 1, 2 * MIB) == PF_OK);
    CHECK(start[MIB] == 1 && start[MIB + 1] == 0 && start[3 * MIB] == 0 && start[3 * MIB + 1] == 1);
    CHECK(pf_region_advise(region, start, 8 * MIB, PF_ADVICE_RANDOM) == PF_OK);
    CHECK(pf_region_advise(region, start, MIB, PF_ADVICE_WILL_NEED) == PF_OK);
    CHECK(pf_region_advise(region, start, MIB, 9) == PF_EINVAL);
    CHECK(pf_region_resize(region, 65 * MIB) == PF_EINVAL);
    CHECK(pf_region_resize(region, 64 * MIB) == PF_OK && pf_region_len_bytes(region) == 64 * MIB);
    CHECK(start[16 * MIB] == 0 && start[64 * MIB - 1] == 0);
    CHECK(pf_region_resize(region, 8 * MIB) == PF_OK && pf_region_resize(region, 16 * MIB) == PF_OK);
    CHECK(start[8 * MIB - 1] == 1 && start[8 * MIB] == 0);
    close(fd);
    CHECK(pf_region_destroy(region) == PF_OK);
}

static void limits_and_statistics(void) {
    pf_region *region = make_region(16 * MIB, 4 * MIB, 0, 0);
    char *start = pf_region_address(region);
    pf_region_stats stats;
    struct {
        pf_region_stats known;
        uint64_t later;
    } larger;
    for (size_t i = 0; i < 16 * MIB; i += 8) memcpy(start + i, &i, sizeof i);
    CHECK(pf_region_get_stats(region, &stats, sizeof stats) == PF_OK);
    CHECK(stats.size_bytes == sizeof stats && stats.limit_bytes == 4 * MIB);
    CHECK(stats.resident_max_bytes <= 4 * MIB && stats.faults_zero > 0);
    CHECK(stats.metadata_bytes > 0 && stats.metadata_bytes <= stats.metadata_max_bytes);
    CHECK(stats.page_tables_bytes >= 8 * 4096 && stats.page_tables_bytes < MIB);
    CHECK(stats.compressed_only_bytes >= 12 * MIB && stats.compressed_bytes < stats.stored_bytes);
    CHECK(pf_region_set_limit(region, 4096) == PF_EINVAL);
    CHECK(pf_region_set_limit(region, 2 * MIB) == PF_OK);
    CHECK(pf_region_set_pool_limit(region, 64 * MIB, 0) == PF_EINVAL);
    CHECK(pf_region_set_pool_limit(region, 64 * MIB, 90) == PF_OK);
    memset(&larger, 0xff, sizeof larger);
    CHECK(pf_region_get_stats(region, &larger.known, sizeof larger) == PF_OK);
    CHECK(larger.known.size_bytes == sizeof stats && larger.later == 0 && larger.known.limit_bytes == 2 * MIB);
    memset(&stats, 0xff, sizeof stats);
    CHECK(pf_region_get_stats(region, &stats, 16) == PF_OK);
    CHECK(stats.size_bytes == 16 && stats.resident_max_bytes == UINT64_MAX);
    CHECK(pf_region_get_stats(region, &stats, 1) == PF_EINVAL);
    CHECK(pf_region_destroy(region) == PF_OK);
}

static void files(void) {
    pf_region_config config;
    pf_region *region;
    char expected[4096];
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.limit_bytes = MIB;
    int fd = open("/proc/self/exe", O_RDONLY), folder = open("/", O_RDONLY);
    CHECK(fd >= 0 && pread(fd, expected, 4096, 0) == 4096);
    CHECK(pf_region_from_file(fd, &config, &region) == PF_OK);
    close(fd);
    CHECK(memcmp(pf_region_address(region), expected, 4096) == 0 && pf_region_len_bytes(region) >= 8192);
    CHECK(pf_region_destroy(region) == PF_OK);
    CHECK(pf_region_from_file(folder, &config, &region) == PF_EFILE && region == NULL);
    CHECK(pf_region_from_file(-1, &config, &region) == PF_EINVAL);
    char path[] = "/tmp/pagefold-region-XXXXXX";
    int empty = mkstemp(path);
    CHECK(empty >= 0 && unlink(path) == 0);
    CHECK(pf_region_from_file(empty, &config, &region) == PF_EINVAL && region == NULL);
    CHECK(strstr(pf_error_message(), "empty") != NULL);
    close(empty);
    close(folder);
}

/* A file that is read three times, through a pool that has space for a part of it. */
static void files_that_are_read_again(void) {
    enum { PAGES = 2048 };
    char path[] = "/tmp/pagefold-region-XXXXXX", page[4096];
    pf_region_config config;
    pf_region_stats stats;
    pf_region *region;
    uint64_t word = 1;
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0);
    for (int i = 0; i < PAGES; i++) {
        for (int at = 0; at < 4096; at += 8) {
            word = word * 6364136223846793005u + 1442695040888963407u; /* does not compress */
            memcpy(page + at, &word, 8);
        }
        CHECK(write(fd, page, 4096) == 4096);
    }
    CHECK(pf_region_config_init(&config, sizeof config) == PF_OK);
    config.limit_bytes = MIB;
    config.max_pool_bytes = MIB;
    CHECK(pf_region_from_file(fd, &config, &region) == PF_OK);
    close(fd);
    for (int round = 0; round < 3; round++) {
        const volatile char *bytes = pf_region_address(region);
        for (size_t i = 0; i < PAGES; i++) (void)bytes[i * 4096];
        CHECK(pf_region_get_stats(region, &stats, sizeof stats) == PF_OK);
        CHECK(stats.file_reads - stats.file_rereads == PAGES);
        CHECK(stats.file_read_calls > 0 && stats.file_read_calls < stats.file_reads);
        CHECK(round == 0 || stats.file_rereads > PAGES / 2);
    }
    CHECK(pf_region_destroy(region) == PF_OK);
}

int main(void) {
    configurations_of_any_version();
    bad_settings();
    pins_and_parts();
    limits_and_statistics();
    files();
    files_that_are_read_again();
    return 0;
}
