// Containers of the standard library in compressed memory: a std::pmr::memory_resource on an arena.
//
//   c++ -std=c++17 pmr_resource.cpp $(pkg-config --cflags --libs pagefold) && ./a.out

#include <pagefold.h>

#include <cstddef>
#include <iostream>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <unordered_map>

/// Blocks of a region with a limit on its resident memory.
class compressed_memory final : public std::pmr::memory_resource {
public:
    compressed_memory(std::size_t len_bytes, std::size_t limit_bytes) {
        pf_region_config config;
        check(pf_region_config_init(&config, sizeof config));
        config.len_bytes = len_bytes;
        config.limit_bytes = limit_bytes;
        check(pf_region_create(&config, &region_));
        if (pf_arena_create(region_, pf_region_address(region_), len_bytes, &arena_) != PF_OK) {
            const std::string why = pf_error_message();
            pf_region_destroy(region_);
            throw std::runtime_error(why);
        }
    }

    ~compressed_memory() override {
        pf_arena_destroy(arena_);
        pf_region_destroy(region_);
    }

    compressed_memory(const compressed_memory &) = delete;
    compressed_memory &operator=(const compressed_memory &) = delete;

    pf_region_stats stats() const {
        pf_region_stats stats;
        check(pf_region_get_stats(region_, &stats, sizeof stats));
        return stats;
    }

private:
    static void check(int code) {
        if (code != PF_OK) throw std::runtime_error(pf_error_message());
    }

    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        void *block = pf_arena_aligned_alloc(arena_, alignment, bytes);
        if (block == nullptr) throw std::bad_alloc();
        return block;
    }

    void do_deallocate(void *block, std::size_t, std::size_t) override { pf_arena_free(arena_, block); }

    bool do_is_equal(const memory_resource &other) const noexcept override { return this == &other; }

    pf_region *region_ = nullptr;
    pf_arena *arena_ = nullptr;
};

int main() {
    compressed_memory memory(256 << 20, 16 << 20);
    {
        std::pmr::unordered_map<int, std::pmr::string> words(&memory);
        for (int i = 0; i < 200'000; i++) {
            words[i] = "a value that is long enough to have memory of its own: " + std::to_string(i);
        }
        for (int i = 0; i < 200'000; i += 1999) {
            const auto &value = words.at(i);
            if (value.compare(value.rfind(' ') + 1, value.npos, std::to_string(i).c_str()) != 0) return 1;
        }
        const auto stats = memory.stats();
        std::cout << (stats.compressed_only_bytes >> 20) << " MiB are compressed, into " << (stats.pool_bytes >> 20)
                  << " MiB; resident at most " << (stats.resident_max_bytes >> 20) << " MiB\n";
        if (stats.resident_max_bytes > stats.limit_bytes) return 1;
    }

    // What does not fit is an exception, as with any other resource.
    try {
        std::pmr::string(512 << 20, 'x', &memory);
        return 1;
    } catch (const std::bad_alloc &) {
    }
}
