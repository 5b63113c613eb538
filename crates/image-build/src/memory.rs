//! How the memory of a build is divided between what is compressed and the tables of files.
//!
//! Segments under way, their results and the encoders take memory for each thread. The rest is for the pages of tables
//! that are resident. Fewer threads, or fewer segments under way, change how long a build takes and never the image.

use super::compress::segment::SEGMENT_BYTES_MAX;
use super::compress::workers::config;
use super::contents::{packed_segment_bytes, sampler_bytes};
use super::options::Options;
use super::sort::Sort;
use super::{BuildError, Result, Spill};
use pagefold_codec::cluster::encode::Encoder;
use pagefold_page::size::Human;
use std::path::Path;

/// The program, buffers, and the first records of tables, bytes.
const FIXED_BYTES: u64 = 10 << 20;
/// Least memory for resident pages of tables, bytes.
const RESIDENT_BYTES_MIN: u64 = 4 << 20;

/// Clusters' lengths that a thread takes for attempts to fill one.
const ATTEMPTS_CLUSTERS: u64 = 8;

/// The division of a build's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// Threads that compress.
    pub threads: usize,
    /// Bytes of segments under way.
    pub in_flight_bytes: usize,
    /// Bytes of the tables that may be resident.
    pub resident_bytes: u64,
}

impl Division {
    /// Divides the memory that the options allow: as many of the threads as fit.
    pub fn of(options: &Options) -> Result<Self> {
        let threads = options.thread_count();
        let Some(memory_bytes) = options.memory_bytes else {
            return Ok(Division {
                threads,
                in_flight_bytes: full_in_flight(threads),
                resident_bytes: u64::MAX,
            });
        };
        let encoder_bytes =
            options.compressions().into_iter().map(|one| Encoder::heap_bytes(&config(one, options)));
        // Beside an encoder a thread has its attempts at a cluster.
        let attempts_bytes = ATTEMPTS_CLUSTERS * u64::from(options.cluster_bytes);
        let packed_bytes = match options.fragments {
            // A segment that is being filled, and the fragment that comes next.
            true => packed_segment_bytes(options.cluster_bytes) + options.packed_bytes_max() as usize,
            false => 0,
        };
        let sampler_bytes = if options.choose_by_sample { sampler_bytes() } else { 0 };
        let list_bytes = if let Sort::List(list) = &options.sort { list.heap_bytes() } else { 0 };
        let fixed_bytes =
            FIXED_BYTES + RESIDENT_BYTES_MIN + list_bytes + (packed_bytes + sampler_bytes) as u64;
        let encoder_bytes = encoder_bytes.map(|bytes| bytes as u64).sum::<u64>() + attempts_bytes;
        let division = |threads: usize, in_flight_bytes: usize| {
            let taken = fixed_bytes + least_bytes(threads, in_flight_bytes, encoder_bytes);
            let rest = memory_bytes.checked_sub(taken)?;
            Some(Division { threads, in_flight_bytes, resident_bytes: rest + RESIDENT_BYTES_MIN })
        };
        // Segments that wait matter less than a thread.
        let fitting = (1..=threads).rev().find_map(|threads| {
            let amounts =
                [full_in_flight(threads), (threads + 1) * SEGMENT_BYTES_MAX, threads * SEGMENT_BYTES_MAX];
            amounts.into_iter().find_map(|in_flight_bytes| division(threads, in_flight_bytes))
        });
        fitting.ok_or_else(|| {
            let least = fixed_bytes + least_bytes(1, SEGMENT_BYTES_MAX, encoder_bytes);
            let least = Human(least.next_multiple_of(1 << 20));
            let what = format!(
                "{} of memory does not suffice: one thread with this compression takes {least}. Raise --memory, or \
                 choose a lower level or smaller clusters",
                Human(memory_bytes)
            );
            BuildError::Options { what }
        })
    }
}

impl Options {
    /// Makes the spill for a tree that an image with these options is built from: a file without a name in a directory, if
    /// the options limit the memory.
    pub fn spill(&self, directory: &Path) -> Result<Spill> {
        self.spill_up_to(directory, None)
    }

    /// Makes the same spill for a tree that is read while something else takes memory: no more than so many bytes of tables are
    /// resident.
    pub fn spill_up_to(&self, directory: &Path, resident_bytes_max: Option<u64>) -> Result<Spill> {
        self.check()?;
        match self.memory_bytes {
            None => Ok(Spill::none()),
            Some(_) => {
                let resident_bytes = Division::of(self)?.resident_bytes;
                let most = resident_bytes_max.unwrap_or(u64::MAX).max(RESIDENT_BYTES_MIN);
                Spill::in_directory(directory, resident_bytes.min(most))
            }
        }
    }
}

/// Bytes of a long segment for each thread, one that waits, and one that is written, so that no thread waits for the builder.
fn full_in_flight(threads: usize) -> usize {
    (threads + 2) * SEGMENT_BYTES_MAX
}

/// Bytes that compressing takes. A compressed segment is as long as its source at most; a thread has an encoder for
/// each compression.
fn least_bytes(threads: usize, in_flight_bytes: usize, encoder_bytes: u64) -> u64 {
    2 * in_flight_bytes as u64 + threads as u64 * encoder_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::Compression;
    use crate::target::Target;

    fn options(memory_mib: u64, compression: &str) -> Options {
        let compression = Compression::parse(compression).unwrap();
        let memory_bytes = Some(memory_mib << 20);
        Options { threads: 8, compression, memory_bytes, ..Options::for_target(Target::new(6, 12)) }
    }

    #[test]
    fn less_memory_is_fewer_threads_and_never_more() {
        let mut threads = 0;
        for memory_mib in [64, 128, 256, 512, 1024] {
            let division = Division::of(&options(memory_mib, "zstd:12")).unwrap();
            assert!(
                division.threads >= threads
                    && division.in_flight_bytes >= division.threads * SEGMENT_BYTES_MAX
            );
            assert!(
                division.resident_bytes >= RESIDENT_BYTES_MIN && division.resident_bytes < memory_mib << 20
            );
            threads = division.threads;
        }
        assert_eq!(threads, 8);
        let unlimited = Options { memory_bytes: None, ..options(1, "zstd:12") };
        assert_eq!(Division::of(&unlimited).unwrap().threads, 8);
    }

    #[test]
    fn the_encoders_of_samples_count() {
        // Its low level is itself, so no thread has a further encoder.
        let plain = options(512, "lz4");
        let sampled = Options { choose_by_sample: true, ..plain.clone() };
        let [plain, sampled] = [plain, sampled].map(|options| Division::of(&options).unwrap());
        assert_eq!(plain.resident_bytes - sampled.resident_bytes, sampler_bytes() as u64);
    }

    #[test]
    fn too_little_memory_is_an_error_that_says_how_much_it_takes() {
        let large = Options { cluster_bytes: 1 << 20, ..options(64, "lzma:9") };
        let error = Division::of(&large).unwrap_err().to_string();
        assert!(error.contains("64 MiB of memory does not suffice") && error.contains("takes"), "{error}");
    }
}
