//! What is known about a running disk: the JSON of `disk show`, and the way the
//! server tells it to the commands. Documented in `docs/json.md`; names end in
//! their unit, values are exact.

use super::attributes;
use super::disk::Disk;
use super::parked::ParkingReport;
use super::refused::WriteState;
use pagefold_block::metered::{Latency, OPERATIONS, bucket_end_ns};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything about one disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// `loop` or `nbd`.
    pub door: String,
    /// Device path or NBD URI; empty if somebody detached the loop device.
    pub device: String,
    /// Whether it takes writes.
    pub state: WriteState,
    /// What the administrator should know about it, for people.
    pub warnings: Vec<String>,
    /// Size of the device.
    pub size_bytes: u64,
    /// Always true: contents end with the server, parked ones included.
    pub volatile: bool,
    /// When it was created, seconds since 1970.
    pub created_unix_s: u64,
    /// How pages are compressed.
    pub codec: CodecReport,
    /// Bytes of stored pages before compression.
    pub original_bytes: u64,
    /// Bytes of stored pages after it.
    pub compressed_bytes: u64,
    /// Bytes of the pages in memory, before compression, by the memory that these take (pool, and their part of
    /// the slot table); absent while there are none.
    pub ratio: Option<f64>,
    /// Pages by state.
    pub pages: PagesReport,
    /// What it costs.
    pub memory: MemoryReport,
    /// Its backing, and what is parked there; absent without one.
    pub parking: Option<ParkingReport>,
    /// The server process.
    pub server: ServerReport,
    /// Requests by operation name.
    pub io: BTreeMap<String, IoReport>,
    /// What failed, and what waited.
    pub events: EventsReport,
    /// Who uses it now, in words.
    pub used_by: Vec<String>,
    /// What became of NBD clients; absent with another door.
    #[serde(default)]
    pub clients: Option<ClientsReport>,
    /// Every attribute that can be shown, as text.
    pub attributes: BTreeMap<String, String>,
}

/// NBD clients now, and what happened to them since the server began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientsReport {
    /// Clients that have the export open.
    pub open: usize,
    /// How many may have it open.
    pub most_open: usize,
    /// Clients in their handshake.
    pub in_handshake: usize,
    /// Clients that were served a handshake.
    pub accepted: u64,
    /// Clients turned away because too many had the export open.
    pub refused_full: u64,
    /// Clients hung up on because they were another user's.
    pub refused_peer: u64,
    /// Clients hung up on because they had not opened the export in time.
    pub slow_handshakes: u64,
    /// Clients hung up on because they had sent no request and another needed their place.
    pub unused: u64,
    /// Connections that failed or broke the protocol.
    pub failed: u64,
}

/// The codec in use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecReport {
    /// Its name.
    pub name: String,
    /// Its level, if it has levels.
    pub level: Option<i32>,
    /// Length of its dictionary, 0 for none.
    pub dictionary_bytes: u64,
}

/// Stored pages by state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PagesReport {
    /// Pages that hold something.
    pub stored: u64,
    /// Compressed.
    pub folded: u64,
    /// Kept as one word.
    pub same_filled: u64,
    /// Kept as they are because they do not compress.
    pub raw: u64,
    /// Moved to the backing.
    pub parked: u64,
    /// Freed by compaction so far.
    pub compacted: u64,
}

/// Memory of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The pool's slabs now.
    pub pool_bytes: u64,
    /// Most the slabs took.
    pub pool_max_bytes: u64,
    /// Their hard limit; absent for none.
    pub limit_bytes: Option<u64>,
    /// The table of pages: slots, and the links between frames.
    pub slot_table_bytes: u64,
    /// Free memory kept ready.
    pub ready_bytes: u64,
    /// All memory of the server process that is in RAM.
    pub server_rss_bytes: Option<u64>,
}

/// The server process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// Its process id.
    pub pid: u32,
    /// The program's version.
    pub version: String,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IoReport {
    /// Requests that came.
    pub requests: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// How long they took.
    pub latency: LatencyReport,
}

/// A latency histogram since it was last emptied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Half took no longer; an upper bound, less than twice too high. Absent without requests.
    pub p50_ns: Option<u64>,
    /// 99 % took no longer; likewise.
    pub p99_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// Requests by time: bounds are powers of two. Empty buckets are left out.
    pub buckets: Vec<BucketReport>,
}

/// Requests that took less than `below_ns`, and at least half of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketReport {
    /// Upper bound, not reached.
    pub below_ns: u64,
    /// Requests.
    pub requests: u64,
}

/// What failed, and what waited, since the disk was created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventsReport {
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes that failed, as a rule at the memory limit.
    pub failed_writes: u64,
    /// When a write was last refused for want of memory, seconds since 1970; absent if none was.
    pub last_refused_write_unix_s: Option<u64>,
    /// Requests outside the device.
    pub invalid_requests: u64,
    /// Pages that discard freed.
    pub discarded_pages: u64,
    /// Times a request used another CPU's codec stream.
    pub streams_borrowed: u64,
    /// Times a request waited for a codec stream.
    pub stream_waits: u64,
    /// Writes that found no memory ready and waited for it.
    pub slow_writes: u64,
}

impl LatencyReport {
    fn new(latency: &Latency) -> Self {
        let full = latency.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        LatencyReport {
            p50_ns: latency.quantile_ns(500),
            p99_ns: latency.quantile_ns(990),
            max_ns: (latency.count() > 0).then_some(latency.max_ns),
            buckets: full.map(|(b, n)| BucketReport { below_ns: bucket_end_ns(b), requests: *n }).collect(),
        }
    }
}

/// How a disk is reached now.
pub struct Exported {
    /// `loop` or `nbd`.
    pub door: &'static str,
    /// Device path or NBD URI; empty if there is none any more.
    pub device: String,
    /// Who uses it, in words.
    pub used_by: Vec<String>,
    /// What the administrator should know about it.
    pub warnings: Vec<String>,
    /// What became of its clients, if the export counts them.
    pub clients: Option<ClientsReport>,
}

/// Bytes of the pages in memory, before compression, by the memory that they take: the pool, and the part of the
/// slot table that is theirs. Pages on the backing have slots too.
fn ratio(stored_pages: u64, in_memory_pages: u64, pool_bytes: u64, table_bytes: u64) -> Option<f64> {
    if in_memory_pages == 0 {
        return None;
    }
    let share = in_memory_pages as f64 / stored_pages.max(in_memory_pages) as f64;
    let cost = pool_bytes as f64 + table_bytes as f64 * share;
    (cost > 0.0).then(|| (in_memory_pages * pagefold_page::PAGE_SIZE as u64) as f64 / cost)
}

impl Report {
    /// Whether the disk takes writes and can be reached, in a few words.
    pub fn state_in_words(&self) -> &'static str {
        match self.state {
            WriteState::Ok if self.device.is_empty() => "detached",
            state => state.in_words(),
        }
    }

    /// The figures of `disk` now. Waits for nothing.
    pub fn of(disk: &Disk, exported: Exported) -> Self {
        let stats = disk.store().stats();
        let (mm, memory) = (stats.mm, stats.memory);
        let (codec, level) = disk.store().codec();
        let stored = mm.orig_data_size / pagefold_page::PAGE_SIZE as u64;
        let parking = ParkingReport::of(disk);
        let parked = parking.as_ref().map_or(0, |p| p.pages);
        let io = OPERATIONS.iter().map(|&o| {
            let t = disk.meter().traffic(o);
            let latency = LatencyReport::new(&t.latency);
            let report = IoReport { requests: t.requests, bytes: t.bytes, errors: t.errors, latency };
            (o.name().to_string(), report)
        });
        let shown = |a: &attributes::Attribute| Some((a.name.to_string(), a.show(disk).ok()?));
        Report {
            name: disk.name().to_string(),
            door: exported.door.to_string(),
            device: exported.device,
            state: disk.write_state(),
            warnings: exported.warnings,
            size_bytes: disk.size_bytes(),
            volatile: true,
            created_unix_s: disk.created_unix_s(),
            codec: CodecReport { name: codec.to_string(), level, dictionary_bytes: disk.dictionary_bytes() },
            original_bytes: mm.orig_data_size,
            compressed_bytes: mm.compr_data_size,
            ratio: ratio(
                stored,
                stored.saturating_sub(parked),
                mm.mem_used_total,
                memory.slots + memory.links,
            ),
            pages: PagesReport {
                stored,
                folded: stored.saturating_sub(mm.same_pages + mm.huge_pages + parked),
                same_filled: mm.same_pages,
                raw: mm.huge_pages,
                parked,
                compacted: mm.pages_compacted,
            },
            memory: MemoryReport {
                pool_bytes: mm.mem_used_total,
                pool_max_bytes: mm.mem_used_max,
                limit_bytes: (mm.mem_limit > 0).then_some(mm.mem_limit),
                slot_table_bytes: memory.slots + memory.links,
                ready_bytes: memory.ready,
                server_rss_bytes: pagefold_sys::pidfd::own_rss_bytes(),
            },
            parking,
            server: ServerReport { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_string() },
            io: io.collect(),
            events: EventsReport {
                failed_reads: stats.io.failed_reads,
                failed_writes: stats.io.failed_writes,
                last_refused_write_unix_s: disk.last_refused_write_unix_s(),
                invalid_requests: stats.io.invalid_io,
                discarded_pages: stats.io.notify_free,
                streams_borrowed: stats.streams.borrowed,
                stream_waits: stats.streams.waited,
                slow_writes: stats.slow_writes,
            },
            used_by: exported.used_by,
            clients: exported.clients,
            attributes: attributes::all().filter_map(shown).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_the_pages_in_memory() {
        assert_eq!(ratio(0, 0, 0, 4096), None);
        // 100 pages in half of their size, and 16 bytes of slot each.
        let alone = ratio(100, 100, 204_800, 1600).unwrap();
        assert!((1.9..2.0).contains(&alone), "{alone}");
        // The same beside a million pages on the backing, whose slots are not theirs.
        let beside = ratio(1_000_100, 100, 204_800, 16_001_600).unwrap();
        assert!((beside - alone).abs() < 0.001, "{beside}");
    }
}
