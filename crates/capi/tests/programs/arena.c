/* Each call on arenas, with its errors. */
#include "check.h"
#include <string.h>

static int is_filled(const unsigned char *block, unsigned char byte, size_t len_bytes) {
    for (size_t i = 0; i < len_bytes; i++)
        if (block[i] != byte) return 0;
    return 1;
}

static uint64_t memory_of(pf_region *region) {
    pf_region_stats stats;
    CHECK(pf_region_get_stats(region, &stats, sizeof stats) == PF_OK);
    return stats.compressed_only_bytes + stats.resident_bytes;
}

static void making_and_destroying(void) {
    pf_region *region = make_region(32 * MIB, 4 * MIB, 64 * MIB, 0);
    char *start = pf_region_address(region);
    pf_arena *one, *two, *none;
    pf_pin *pin;
    memset(start, 1, 32 * MIB);
    CHECK(pf_arena_create(region, start + 1, 8 * MIB, &one) == PF_OK);
    CHECK(pf_arena_create(region, start + 8 * MIB - 4096, 8 * MIB, &none) == PF_EBUSY && none == NULL);
    CHECK(pf_arena_create(region, start + 9 * MIB, 8 * MIB, &two) == PF_OK);
    CHECK(pf_arena_create(region, start + 20 * MIB, MIB, &none) == PF_EINVAL);
    CHECK(pf_arena_create(region, start + 31 * MIB, 2 * MIB, &none) == PF_ERANGE);
    CHECK(pf_arena_create(NULL, start, 8 * MIB, &none) == PF_EINVAL);
    CHECK(pf_region_destroy(region) == PF_EBUSY && pf_region_resize(region, 16 * MIB) == PF_EBUSY);
    CHECK(pf_region_resize(region, 20 * MIB) == PF_OK && pf_region_resize(region, 32 * MIB) == PF_OK);
    char *first = pf_arena_malloc(one, 100), *second = pf_arena_malloc(two, 100);
    CHECK(first > start && first < start + 8 * MIB + 1 && second >= start + 9 * MIB && second < start + 17 * MIB);
    CHECK(pf_region_pin(region, first, 100, &pin) == PF_OK && pf_unpin(pin) == PF_OK);
    /* A block of another arena is ignored. */
    pf_arena_free(one, second);
    CHECK(strstr(pf_error_message(), "not of this arena") != NULL);
    CHECK(pf_arena_usable_size(one, second) == 0 && pf_arena_realloc(one, second, 1) == NULL);
    CHECK(pf_arena_destroy(one) == PF_OK && start[8 * MIB - 1] == 0 && start[0] == 1);
    CHECK(pf_arena_create(region, start, 8 * MIB, &one) == PF_OK);
    CHECK(pf_arena_malloc(one, 100) != NULL && pf_arena_destroy(one) == PF_OK);
    CHECK(pf_arena_destroy(two) == PF_OK && pf_arena_destroy(NULL) == PF_OK);
    CHECK(pf_arena_malloc(NULL, 1) == NULL && pf_region_destroy(region) == PF_OK);
}

static void blocks(pf_arena *arena) {
    static unsigned char *kept[40];
    for (int i = 0; i < 40; i++) {
        size_t size = ((size_t)1 << i / 2) + (size_t)i;
        kept[i] = pf_arena_malloc(arena, size);
        CHECK(kept[i] != NULL && pf_arena_usable_size(arena, kept[i]) >= size);
        CHECK(size < 16 || (uintptr_t)kept[i] % 16 == 0);
        memset(kept[i], i, pf_arena_usable_size(arena, kept[i]));
    }
    for (int i = 0; i < 40; i++) {
        size_t old = pf_arena_usable_size(arena, kept[i]), size = i % 2 ? old / 2 + 1 : 3 * old;
        unsigned char *moved = pf_arena_realloc(arena, kept[i], size);
        CHECK(moved != NULL && is_filled(moved, (unsigned char)i, old < size ? old : size));
        memset(moved, 0xee, size);
        pf_arena_free(arena, moved);
    }
    for (size_t size = 1; size < 4 * MIB; size = 3 * size + 1) {
        unsigned char *zeroes = pf_arena_calloc(arena, 3, size);
        CHECK(zeroes != NULL && is_filled(zeroes, 0, 3 * size));
        memset(zeroes, 0xee, 3 * size);
        pf_arena_free(arena, zeroes);
    }
    for (size_t alignment = 1; alignment <= 4 * MIB; alignment *= 2) {
        void *aligned = pf_arena_aligned_alloc(arena, alignment, 100);
        CHECK(aligned != NULL && (uintptr_t)aligned % alignment == 0);
        pf_arena_free(arena, aligned);
    }
    CHECK(pf_arena_aligned_alloc(arena, 3, 100) == NULL && strstr(pf_error_message(), "power of two") != NULL);
    CHECK(pf_arena_aligned_alloc(arena, 0, 100) == NULL);
    void *empty = pf_arena_malloc(arena, 0);
    CHECK(empty != NULL && (empty = pf_arena_realloc(arena, empty, 0)) != NULL);
    pf_arena_free(arena, empty);
    pf_arena_free(arena, NULL);
    CHECK((empty = pf_arena_realloc(arena, NULL, 10)) != NULL);
    pf_arena_free(arena, empty);
    size_t volatile huge = SIZE_MAX;
    CHECK(pf_arena_malloc(arena, huge) == NULL && pf_arena_malloc(arena, huge / 2) == NULL);
    CHECK(pf_arena_calloc(arena, huge / 2, 3) == NULL && strstr(pf_error_message(), "no space") != NULL);
}

/* Fills the arena with blocks of a size, and returns how many bytes there was space for. */
static size_t fill(pf_arena *arena, size_t size) {
    void **list = NULL;
    size_t bytes = 0;
    for (void **block; (block = pf_arena_malloc(arena, size)) != NULL; bytes += size) {
        block[0] = list;
        list = block;
    }
    CHECK(strstr(pf_error_message(), "no space") != NULL);
    while (list != NULL) {
        void **next = list[0];
        pf_arena_free(arena, list);
        list = next;
    }
    return bytes;
}

/* A thread keeps the large blocks that it freed last, until it trims. */
static void keeping(void) {
    enum { BLOCKS = 8 };
    const size_t size = MIB / BLOCKS;
    /* Under so small a limit no part gets huge pages, of which a part would stay resident after the trim. */
    pf_region *region = make_region(64 * MIB, 7 * MIB, 0, 0);
    unsigned char *kept[BLOCKS];
    pf_arena *arena;
    CHECK(pf_arena_create(region, pf_region_address(region), 64 * MIB, &arena) == PF_OK);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((kept[i] = pf_arena_malloc(arena, size)) != NULL);
        memset(kept[i], 1, size);
    }
    for (int i = 0; i < BLOCKS; i++) pf_arena_free(arena, kept[i]);
    CHECK(memory_of(region) >= MIB);
    /* The last one first, if the size and the alignment fit; never for zeroed memory. */
    CHECK(pf_arena_malloc(arena, size - 1) == kept[BLOCKS - 1]);
    CHECK(pf_arena_usable_size(arena, kept[BLOCKS - 1]) == size);
    unsigned char *other = pf_arena_malloc(arena, size / 2);
    unsigned char *zeroes = pf_arena_calloc(arena, 1, size), *aligned = pf_arena_aligned_alloc(arena, 4 * MIB, size);
    for (int i = 0; i < BLOCKS; i++) CHECK(other != kept[i] && zeroes != kept[i]);
    CHECK((uintptr_t)aligned % (4 * MIB) == 0 && is_filled(zeroes, 0, size));
    CHECK(pf_arena_malloc(arena, size) == kept[BLOCKS - 2]);
    unsigned char *all[] = {other, zeroes, aligned, kept[BLOCKS - 1], kept[BLOCKS - 2]};
    for (int i = 0; i < 5; i++) pf_arena_free(arena, all[i]);
    CHECK(pf_arena_trim(arena) == PF_OK && memory_of(region) < MIB / 8);
    CHECK(pf_arena_destroy(arena) == PF_OK && pf_region_destroy(region) == PF_OK);
}

int main(void) {
    making_and_destroying();
    keeping();
    pf_region *region = make_region(64 * MIB, 4 * MIB, 0, 0);
    pf_arena *arena;
    CHECK(pf_arena_create(region, pf_region_address(region), 64 * MIB, &arena) == PF_OK);
    blocks(arena);
    /* What one size used is there for the others: nothing is lost. */
    size_t sizes[] = {5 * MIB, 64, 8 * MIB, 1000, MIB, 30000};
    for (size_t i = 0; i < 12; i++) CHECK(fill(arena, sizes[i % 6]) >= 56 * MIB);
    char *whole = pf_arena_malloc(arena, 56 * MIB);
    CHECK(whole != NULL);
    memset(whole, 1, 56 * MIB);
    CHECK(memory_of(region) >= 56 * MIB);
    pf_arena_free(arena, whole);
    CHECK(memory_of(region) < 8 * MIB && pf_arena_trim(arena) == PF_OK);
    /* Trimming releases small blocks too. */
    for (int i = 0; i < 2; i++) {
        fill(arena, 2000);
        CHECK(pf_arena_trim(arena) == PF_OK && memory_of(region) < 2 * MIB);
        unsigned char *zeroes = pf_arena_calloc(arena, 56, MIB);
        CHECK(zeroes != NULL && is_filled(zeroes, 0, 56 * MIB));
        pf_arena_free(arena, zeroes);
    }
    CHECK(pf_arena_destroy(arena) == PF_OK && memory_of(region) < MIB);
    CHECK(pf_region_destroy(region) == PF_OK);
    return 0;
}
