//! The parameters with which libzstd compresses a cluster: they depend on the level, and on what the source consists of.
//!
//! Programs consist of short repetitions. At medium levels libzstd looks for one match at a time, of 4 bytes and more, and in
//! sources of some length it searches for matches of 3 bytes at levels of 14 and more only. The strategy `btopt`, which finds
//! them, makes code some 5 % smaller than `lazy2`, and takes three times as long, even if it searches little. Tables, strings
//! and text become no smaller by it, or larger. So at these levels each cluster has one of two searches (`zstd_kind` chooses).

use zstd_safe::zstd_sys::{self, ZSTD_compressionParameters, ZSTD_strategy};

/// The levels at which sources of any length have libzstd's parameters for 256 KiB. From 14 on it searches for matches of 3
/// bytes only in sources up to this length. Those for longer ones also have longer tables, which are copied for each block.
const SHORT_TABLE_LEVELS: std::ops::RangeInclusive<i32> = 10..=17;

/// The kind of contents of a source, as far as the search for matches depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Many short matches: code.
    ShortMatches,
    /// Longer ones: text, tables, and what does not compress.
    LongMatches,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::ShortMatches, Kind::LongMatches];
}

/// A level with a search for each kind.
struct Searches {
    level: i32,
    /// Logarithm of attempts, and the length of a match that is taken at once, for short matches.
    short: (u32, u32),
    /// Strategy and logarithm of attempts for longer ones.
    long: (ZSTD_strategy, u32),
}

/// The levels at which libzstd has `lazy2` or `btlazy2`, or first `btopt`. More attempts than 64 make no difference to
/// `lazy2`. Of level 13, `btlazy2` is the search of libzstd's level 12, which is denser than that of its level 13.
const SEARCHES: [Searches; 4] = [
    Searches { level: 10, short: (1, 8), long: (ZSTD_strategy::ZSTD_lazy2, 6) },
    Searches { level: 11, short: (1, 10), long: (ZSTD_strategy::ZSTD_lazy2, 6) },
    Searches { level: 12, short: (1, 12), long: (ZSTD_strategy::ZSTD_lazy2, 6) },
    Searches { level: 13, short: (2, 16), long: (ZSTD_strategy::ZSTD_btlazy2, 7) },
];

/// Logarithm of the tables' lengths for short matches. Longer tables find little more and are slower, because all of the
/// state is copied for each block that may be taken back.
const SHORT_TABLE_LOG: u32 = 17;
/// The same for the hash table of longer matches.
const LONG_TABLE_LOG: u32 = 18;

impl Searches {
    fn of(level: i32) -> Option<&'static Self> {
        SEARCHES.iter().find(|row| row.level == level)
    }

    fn parameters(&self, kind: Kind) -> ZSTD_compressionParameters {
        match (kind, self.short, self.long) {
            (Kind::ShortMatches, (search_log, target_length), _) => ZSTD_compressionParameters {
                windowLog: 0,
                chainLog: SHORT_TABLE_LOG,
                hashLog: SHORT_TABLE_LOG,
                searchLog: search_log,
                minMatch: 3,
                targetLength: target_length,
                strategy: ZSTD_strategy::ZSTD_btopt,
            },
            (Kind::LongMatches, _, (strategy, search_log)) => {
                let (chain_log, hash_log) = long_table_logs(strategy);
                ZSTD_compressionParameters {
                    windowLog: 0,
                    chainLog: chain_log,
                    hashLog: hash_log,
                    searchLog: search_log,
                    minMatch: 4,
                    targetLength: 12,
                    strategy,
                }
            }
        }
    }
}

/// Logarithms of the lengths of the chain table and the hash table for longer matches.
fn long_table_logs(strategy: ZSTD_strategy) -> (u32, u32) {
    match strategy {
        // It has no chains.
        ZSTD_strategy::ZSTD_lazy2 => (SHORT_TABLE_LOG, LONG_TABLE_LOG),
        _ => (LONG_TABLE_LOG + 1, LONG_TABLE_LOG + 1),
    }
}

/// Whether the parameters of a level depend on the kind of source.
pub(super) fn has_kinds(level: i32) -> bool {
    Searches::of(level).is_some()
}

/// Returns the parameters for all kinds and lengths of sources.
pub(super) fn all_parameters(max_window_bytes: u32, level: i32) -> [ZSTD_compressionParameters; 8] {
    // The longest for which libzstd uses a table of parameters, and a longer one.
    let lengths = [16 << 10, 128 << 10, 256 << 10, 16 << 20];
    std::array::from_fn(|at| parameters(max_window_bytes, level, lengths[at / 2], Kind::ALL[at % 2]))
}

/// Returns the parameters for sources of this length, with a window of this length.
pub(super) fn parameters(
    window_bytes: u32,
    level: i32,
    expected_bytes: usize,
    kind: Kind,
) -> ZSTD_compressionParameters {
    // SAFETY: the function only calculates with its arguments.
    let table = |len: usize| unsafe { zstd_sys::ZSTD_getCParams(level, len as u64, 0) };
    let mut parameters = match Searches::of(level) {
        Some(row) => row.parameters(kind),
        None if SHORT_TABLE_LEVELS.contains(&level) => table(expected_bytes.min(256 << 10)),
        None => table(expected_bytes),
    };
    parameters.windowLog = window_bytes.ilog2();
    // This makes the tables as short as the window permits.
    // SAFETY: the function only calculates with its arguments.
    unsafe { zstd_sys::ZSTD_adjustCParams(parameters, 1 << parameters.windowLog, 0) }
}
