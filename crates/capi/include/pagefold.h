/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libpagefold: memory that is larger than the RAM it takes.
 *
 * A region is a range of ordinary memory with a limit on its resident pages. The program reads and writes it as any
 * other memory. Threads in the background compress cold pages beyond the limit, and a page comes back when the program
 * touches it. An arena gives out blocks of a region, as malloc does.
 *
 * Sizes are bytes, and names say so (`_bytes`); a page has 4096. A part of a region is an address and a size.
 *
 * Errors. A function that returns int returns PF_OK or another PF_ code; pf_error_message() then describes the error. A
 * function that failed has changed nothing, except where it says so. errno has no meaning after a call. No function
 * aborts or unwinds, with two exceptions: the process ends when it has no memory for the library's own small objects,
 * and an access to a page that cannot be brought back ends it by SIGBUS.
 *
 * Ownership. The caller owns each handle and destroys it once. During a call, nobody may destroy its handle. Structs
 * and strings are copied: the caller may reuse them after the call.
 *
 * System calls. By default the thread that touched a page serves its fault, and a system call on memory of a region
 * (read, write, send) fails with EFAULT where a page is not resident: pin the part first, or choose
 * PF_SERVICE_HANDLER_THREADS. Not for a region, nor for blocks of an arena: madvise, mprotect, mremap, mlock, and using
 * it as a stack.
 *
 * Mutexes, condition variables, semaphores, barriers and std::atomic::wait() make a system call too, futex(2), and the C
 * library ends the program if that fails. So they must not lie in a region or in a block of an arena, unless their part
 * is pinned or the service is PF_SERVICE_HANDLER_THREADS. Atomic variables may.
 *
 * Which function may be called where:
 *
 *   function                         threads               signal handler   child after fork
 *   -------------------------------  --------------------  ---------------  ------------------------------
 *   an access to a region            any                   yes (1)          no: the child is killed
 *   pf_version, pf_error_name        any                   yes              yes
 *   pf_error_message                 any: its own message  no               yes
 *   pf_region_address, _len_bytes    any                   yes              yes (the memory is not there)
 *   pf_region_config_init            any                   no               yes
 *   pf_region_create, _from_file     any                   no               yes: a region of the child
 *   pf_region_destroy                one, as the last      no               PF_EFORKED (2)
 *   pf_region_resize                 any (3)               no               PF_EFORKED
 *   pf_region_pin, pf_unpin          any                   no               PF_EFORKED
 *   the other pf_region_ functions   any                   no               PF_EFORKED
 *   pf_budget_create                 any                   no               yes: a budget of the child
 *   pf_budget_destroy                one, as the last      no               PF_EFORKED
 *   the other pf_budget_ functions   any                   no               PF_EFORKED, or 0
 *   pf_arena_create, _trim           any                   no               PF_EFORKED
 *   pf_arena_destroy                 one, as the last      no               PF_EFORKED
 *   pf_arena_malloc and its kind     any                   no               NULL, PF_EFORKED
 *   pf_arena_free                    any, each block once  no               does nothing
 *
 *   (1) The signal must not interrupt the library itself while it serves a fault; the library blocks signals there.
 *       With a full pool a page may have to wait: docs/memory.md, Restrictions.
 *   (2) A child needs to destroy nothing. "Child after fork" means a handle of the parent: the child can make others.
 *   (3) It waits for the calls of other threads on the region, and they wait for it.
 *
 * Later versions add functions, codes, and fields at the end of structs, and keep what there is.
 */
#ifndef PAGEFOLD_H
#define PAGEFOLD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) || defined(__clang__)
#define PF_MUST_CHECK __attribute__((warn_unused_result))
#define PF_ALLOCATES(size) __attribute__((malloc, alloc_size(size), warn_unused_result))
#else
#define PF_MUST_CHECK
#define PF_ALLOCATES(size)
#endif

/* ---- errors ---------------------------------------------------------------------------------------------------- */

enum {
    PF_OK = 0,
    PF_EINVAL = 1,   /* an argument or a setting is not valid */
    PF_ERANGE = 2,   /* the part does not lie in the region */
    PF_ELIMIT = 3,   /* the part is larger than half of the limit, the most that one pin may cover */
    PF_EPINNED = 4,  /* a page is pinned and cannot be discarded, or is pinned too often */
    PF_EBUSY = 5,    /* the object is in use: by pins or arenas, or by a callback */
    PF_EFILE = 6,    /* the file is not a regular one, cannot be used, or was changed */
    PF_ELOST = 7,    /* a page's contents are lost or cannot be read back */
    PF_ENOTSUP = 8,  /* the system or this thread does not allow it: the message says what is needed */
    PF_ENOMEM = 9,   /* there is no memory, or no space in the arena or the budget */
    PF_ESYSTEM = 10, /* a system call failed */
    PF_EFORKED = 11, /* the handle belongs to the parent of this process */
    PF_EPANIC = 12   /* a bug in libpagefold; the object can only be destroyed */
};

/* Returns the message of the calling thread's last call that failed, or "". It is valid until the thread's next call
 * that fails. */
const char *pf_error_message(void);

/* Returns the name of a code, such as "PF_EINVAL". */
const char *pf_error_name(int code);

/* Returns the version of the library, such as "0.1.0". */
const char *pf_version(void);

/* ---- regions --------------------------------------------------------------------------------------------------- */

typedef struct pf_region pf_region;

/* The threads that serve faults. */
enum {
    /* The thread that touched the page, in a handler of SIGBUS: the fastest way, which needs no privilege. A program
     * that installs a handler of SIGBUS later must call the one that it replaces. No thread that uses the region may
     * block SIGBUS: the kernel would end the program without a line; a thread that does can neither make a region nor
     * pin a part of one (PF_ENOTSUP). The handler runs on the thread's stack, and needs 32 KiB of it: languages with
     * small stacks of their own, such as Go, need handler threads. */
    PF_SERVICE_FAULTING_THREAD = 0,
    /* Threads of the region: slower, but system calls need no pins on Linux 6.8 and later. Needs root, CAP_SYS_PTRACE, a readable
     * /dev/userfaultfd, or vm.unprivileged_userfaultfd=1. */
    PF_SERVICE_HANDLER_THREADS = 1
};

/* A limit on resident memory that several regions share. A region that needs more gets what the others do not use. If
 * all of it is in use, the region that brings pages back more often takes from the one that does so less. */
typedef struct pf_budget pf_budget;

/* Makes a budget of at least 256 KiB for each region that is going to use it. With 0, it has no fixed limit: its regions
 * may take what the machine, and the memory groups of this process, have available, less a reserve, and give it back
 * when that becomes short. *budget is NULL after an error. */
PF_MUST_CHECK int pf_budget_create(uint64_t limit_bytes, pf_budget **budget);

/* Gives up the handle. Regions that share the budget go on to do so. NULL is allowed. */
int pf_budget_destroy(pf_budget *budget);

/* Changes the limit. If more is resident, the excess is compressed in the background. */
int pf_budget_set_limit(pf_budget *budget, uint64_t limit_bytes);

/* Returns the limit now; 0 for NULL. */
uint64_t pf_budget_limit_bytes(const pf_budget *budget);

/* Returns what all regions of the budget have resident; 0 for NULL. */
uint64_t pf_budget_resident_bytes(const pf_budget *budget);

/* The settings of a region. If system calls use memory of a region only where pf_region_pin has pinned it, no_system_calls
 * lets scattered pages leave the region at less cost. If that promise is broken, a read that is done by a device (direct
 * I/O, fixed buffers of io_uring) can return success and leave old bytes. pf_region_config_init fills in the defaults; len_bytes and limit_bytes have none. */
typedef struct pf_region_config {
    size_t size_bytes;      /* sizeof(struct pf_region_config) of the caller */
    uint64_t len_bytes;     /* the size of the region; rounded up to whole pages */
    uint64_t limit_bytes;   /* the limit on resident pages and tables, at least 256 KiB; compressed pages are extra.
                               With a budget, the most of it that this region may have; 0: all of it */
    uint64_t max_len_bytes; /* the size up to which pf_region_resize can go, at least len_bytes; 0: len_bytes. Takes
                               address space only */
    uint64_t max_pool_bytes; /* the limit on memory of compressed pages; 0: max_pool_percent of the machine's memory */
    const char *codec;       /* NULL: "lz4"; or "zstd", "lzo", "lzo-rle", "lz4hc", "deflate", "842", "numbers" */
    int32_t codec_level;     /* the level, if has_codec_level is not 0 */
    uint32_t has_codec_level;
    uint32_t max_pool_percent; /* 1 to 100; 0: 20, or 100 with a budget that has no fixed limit */
    uint32_t accept_threshold_percent; /* 1 to 100, and 90 by default: a full pool accepts pages
                                          again below this part of its limit */
    uint32_t service;                  /* PF_SERVICE_FAULTING_THREAD */
    uint32_t same_filled;              /* 1: pages that repeat one word take no memory */
    uint32_t neighbours;               /* 1: neighbours come in with a page where access is sequential or strided */
    uint32_t fold_threads;             /* threads that compress, up to 256; 0: one for each CPU, but at most 4 */
    uint32_t handler_threads;          /* threads of PF_SERVICE_HANDLER_THREADS, up to 256; 0: by the CPUs */
    uint32_t no_system_calls;          /* 1: a promise that system calls use pinned memory only, see below */
    const pf_budget *budget; /* the limit that the region shares with others, or NULL; the region does not need the
                                handle later */
} pf_region_config;

/* Fills in the defaults. `size_bytes` is sizeof *config. */
int pf_region_config_init(pf_region_config *config, size_t size_bytes);

/* Makes a region of zeroes, and starts its threads. *region is NULL after an error. */
PF_MUST_CHECK int pf_region_create(const pf_region_config *config, pf_region **region);

/* Makes a region that begins with the bytes of a regular file, each page of which is read when it is touched first. The
 * region has the file's size if len_bytes is less. Changes stay in the region: the file is only read, and must not
 * change or be truncated meanwhile: a touch of a page that was not read before then ends the program with SIGBUS and a
 * line on standard error, and a pin returns PF_EFILE. An empty file needs a len_bytes. The region has its own
 * descriptor: the caller may close `fd`. */
PF_MUST_CHECK int pf_region_from_file(int fd, const pf_region_config *config, pf_region **region);

/* Unmaps the region and ends its threads. PF_EBUSY, and nothing happens, while it has pins or arenas. NULL is
 * allowed. */
int pf_region_destroy(pf_region *region);

/* Returns the address of the first byte, which is aligned to a page and never changes; NULL for NULL. */
void *pf_region_address(const pf_region *region);

/* Returns the present size, whole pages; 0 for NULL. */
size_t pf_region_len_bytes(const pf_region *region);

/* Changes the size, at the same address, up to max_len_bytes. New bytes are zero. Bytes that are cut off are lost:
 * nobody may use them meanwhile, and PF_EPINNED or PF_EBUSY is returned if they are pinned (some may be lost then) or
 * belong to an arena. */
PF_MUST_CHECK int pf_region_resize(pf_region *region, uint64_t len_bytes);

/* Changes the limit. If more is resident, the excess is compressed in the background. */
int pf_region_set_limit(pf_region *region, uint64_t limit_bytes);

/* Changes the limit on memory of compressed pages, and the threshold below which a full pool accepts pages again. */
int pf_region_set_pool_limit(pf_region *region, uint64_t max_pool_bytes, uint32_t accept_threshold_percent);

/* How the program is going to use a part. */
enum {
    PF_ADVICE_NORMAL = 0,     /* neighbours come in with a page where access is sequential or strided */
    PF_ADVICE_SEQUENTIAL = 1, /* from lower to higher addresses, once */
    PF_ADVICE_RANDOM = 2,     /* no neighbours come in */
    PF_ADVICE_WILL_NEED = 3   /* the calling thread brings the part in now, up to half of the limit */
};

/* Says how the program is going to use a part. Advice never changes contents. The first three are kept for 4 MiB of the
 * region at a time. */
int pf_region_advise(pf_region *region, const void *start, size_t len_bytes, uint32_t advice);

/* Makes a part zero, and releases the memory of its whole pages. Nobody may use the part meanwhile. After an error,
 * some of it may be zero. */
int pf_region_discard(pf_region *region, void *start, size_t len_bytes);

/* ---- pins ------------------------------------------------------------------------------------------------------ */

typedef struct pf_pin pf_pin;

/* Makes a part resident, and keeps it so until pf_unpin: system calls can read and write it. Any number of pins may
 * exist, in any threads, overlapping or not. One may cover at most half of the limit, and all together should leave
 * room to work. A pin locks no contents: threads may use the part as ever. */
PF_MUST_CHECK int pf_region_pin(pf_region *region, const void *start, size_t len_bytes, pf_pin **pin);

/* Ends a pin, in any thread. NULL is allowed. */
int pf_unpin(pf_pin *pin);

/* ---- statistics ------------------------------------------------------------------------------------------------ */

/* Counters begin at zero with the region. */
typedef struct pf_region_stats {
    size_t size_bytes;           /* bytes of this struct that the library has filled in */
    uint64_t resident_bytes;     /* pages that have memory, and those on their way out: what the limit counts */
    uint64_t resident_max_bytes; /* the highest value so far */
    uint64_t limit_bytes;
    uint64_t pool_bytes;         /* memory of compressed pages */
    uint64_t metadata_max_bytes; /* tables, if all of them are in use */
    uint64_t compressed_only_bytes; /* pages that are only compressed now, uncompressed size */
    uint64_t stored_bytes;       /* all pages in the store, copies of resident pages included, uncompressed size */
    uint64_t compressed_bytes;   /* the same, compressed; stored_bytes / compressed_bytes is the ratio */
    uint64_t same_filled_pages;  /* pages in the store that are one word each */
    uint64_t incompressible_pages; /* pages in the store that are kept uncompressed */
    uint64_t faults_zero;          /* pages touched for the first time */
    uint64_t faults_compressed;    /* pages brought back from the store */
    uint64_t faults_staged;        /* pages brought back on their way to the store */
    uint64_t faults_failed;
    uint64_t file_reads;           /* pages read from the region's file, neighbours included */
    uint64_t memory_waits;         /* faults that waited because the limit was reached */
    uint64_t fault_ns;             /* time that threads spent serving faults, nanoseconds */
    uint64_t memory_wait_ns;       /* the part of it that they waited for memory */
    uint64_t neighbours_brought;   /* pages brought in beside those that were touched */
    uint64_t neighbours_used;      /* those of them that are known to have been used */
    uint64_t evicted_pages;        /* pages moved out of the region */
    uint64_t evicted_clean_pages;  /* those of them that the store had already */
    uint64_t pool_limit_hit;       /* times that the pool became full */
    uint64_t pool_refused_pages;   /* pages that the pool refused; they stayed resident */
    uint64_t file_read_calls;      /* reads of the region's file: adjacent pages are read together */
    uint64_t file_rereads;         /* those of file_reads that were read again, because the pool was full */
    uint64_t metadata_bytes;       /* tables in use; they are not given back */
    uint64_t page_tables_bytes;    /* the kernel's page tables, about: 4 KiB for each 2 MiB that have or had a page */
    uint64_t unmovable_pages;      /* attempts to evict a page that the kernel or a device used, or that was locked */
} pf_region_stats;

/* Reads the statistics. `size_bytes` is sizeof *stats; fields that the library does not know are zero. */
int pf_region_get_stats(const pf_region *region, pf_region_stats *stats, size_t size_bytes);

/* ---- memory pressure ------------------------------------------------------------------------------------------- */

/* Reasons for pressure: bits. */
enum {
    PF_PRESSURE_POOL_FULL = 1, /* the pool of compressed pages is full and refuses pages */
    PF_PRESSURE_OVER_LIMIT = 2 /* more is resident than the limit allows */
};

/* Called when the reasons change; 0 means that pressure has ended. It runs in a thread of the library, never in a fault
 * or a signal handler, with all asynchronous signals blocked. It may call every function but pf_region_on_pressure and
 * pf_region_destroy for the same region. For another region these two return PF_EBUSY while its callback runs or is being
 * replaced: callbacks that waited for each other would wait for ever. It must not throw or jump out. */
typedef void (*pf_pressure_fn)(uint32_t reasons, void *arg);

/* Registers a callback in the place of the present one; NULL registers none. A thread looks every 100 ms, as long as
 * there is a callback. When this returns, as when pf_region_destroy does, the previous callback is not running and
 * will not be called again. */
int pf_region_on_pressure(pf_region *region, pf_pressure_fn function, void *arg);

/* ---- arenas ---------------------------------------------------------------------------------------------------- */

typedef struct pf_arena pf_arena;

/* Makes an arena that gives out blocks of a part of a region, of at least 2 MiB. The part's contents are lost. While
 * the arena exists, nobody may discard the part or use it other than by its blocks; pins and advice are allowed.
 * Several arenas may share a region, in parts that do not overlap (PF_EBUSY).
 *
 * The allocator is jemalloc. It keeps its metadata outside of the region, so that a page stays compressed while blocks
 * of it are freed. Each thread keeps some freed blocks for its next calls. */
PF_MUST_CHECK int pf_arena_create(pf_region *region, void *start, size_t len_bytes, pf_arena **arena);

/* Frees all blocks, and discards the part. No other thread may use the arena any more, nor its blocks. NULL is
 * allowed. */
int pf_arena_destroy(pf_arena *arena);

/* Returns a block of at least `size` bytes (one byte for 0), aligned as malloc's blocks are. Returns NULL after an
 * error: PF_ENOMEM if the arena has no space. Contents are undefined. */
void *pf_arena_malloc(pf_arena *arena, size_t size) PF_ALLOCATES(2);

/* Like pf_arena_malloc for `count` times `size` bytes, which are zero. */
void *pf_arena_calloc(pf_arena *arena, size_t count, size_t size)
#if defined(__GNUC__) || defined(__clang__)
    __attribute__((malloc, alloc_size(2, 3), warn_unused_result))
#endif
    ;

/* Like pf_arena_malloc, at a multiple of `alignment`, any power of two. */
void *pf_arena_aligned_alloc(pf_arena *arena, size_t alignment, size_t size) PF_ALLOCATES(3);

/* Changes the size of a block, and returns where it is now: it may have moved, and has the alignment of
 * pf_arena_malloc. Bytes up to the smaller size are kept. NULL for a block asks for a new one. After an error NULL is
 * returned, and the block is as before. */
PF_MUST_CHECK void *pf_arena_realloc(pf_arena *arena, void *block, size_t size);

/* Frees a block of this arena, in any thread. Its memory is released about a second later, by later calls; that of a
 * block of 1 MiB or more at once, if less than an eighth of the region's limit is left. NULL is allowed. An address
 * outside of the arena is ignored. */
void pf_arena_free(pf_arena *arena, void *block);

/* Returns the bytes of a block, which may be more than were asked for; 0 for NULL. All of them may be used. */
size_t pf_arena_usable_size(const pf_arena *arena, const void *block);

/* Releases the memory of freed blocks now, except those that other threads keep. */
int pf_arena_trim(pf_arena *arena);

#ifdef __cplusplus
}
#endif

#endif
