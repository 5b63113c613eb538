//! Fills in the report on a disk, for `disk show`. Reads counters only, and does not block.

use super::server::Server;
use crate::attributes;
use crate::disk::{Disk, RunningDisk, recompress_report, writeback_report};
use pagefold_block::metered::OPERATIONS;
use pagefold_control::report::disk::{
    ClassReport, CodecReport, EventsReport, IoReport, MemoryReport, PagesReport, Report, WriteState,
};
use pagefold_control::report::keeper::KeeperReport;
use pagefold_control::report::{LatencyReport, ServerReport};
use pagefold_page::PAGE_SIZE;
use pagefold_store::ClassStats;

/// Bytes of the pages in memory before compression, divided by the memory that they take: the pool, and their part of
/// the slot table. Written-back pages have slots too, which do not count.
fn ratio(stored_pages: u64, in_memory_pages: u64, pool_bytes: u64, table_bytes: u64) -> Option<f64> {
    if in_memory_pages == 0 {
        return None;
    }
    let share = in_memory_pages as f64 / stored_pages.max(in_memory_pages) as f64;
    let cost = pool_bytes as f64 + table_bytes as f64 * share;
    (cost > 0.0).then(|| (in_memory_pages * PAGE_SIZE as u64) as f64 / cost)
}

/// The present report on the disk of `server`.
pub fn report(server: &Server) -> Report {
    let (disk, export) = (&server.disk, &*server.export);
    let failure = export.failure();
    let live = disk.running();
    let live = live.as_deref();
    let stats = live.map(|live| live.store.stats()).unwrap_or_default();
    let (mm, memory) = (stats.mm, stats.memory);
    let stored = mm.orig_data_size / PAGE_SIZE as u64;
    let writeback = live.and_then(writeback_report::status);
    let written_back = writeback.as_ref().map_or(0, |status| status.pages);
    let io = live.into_iter().flat_map(|live| OPERATIONS.map(|o| (live, o))).map(|(live, o)| {
        let traffic = live.meter.traffic(o);
        let report = IoReport {
            requests: traffic.requests,
            bytes: traffic.bytes,
            errors: traffic.errors,
            latency: LatencyReport::new(&traffic.latency),
            reply_latency: LatencyReport::new(&traffic.reply_latency),
        };
        (o.name().to_string(), report)
    });
    let shown = |a: &attributes::Attribute| Some((a.name.to_string(), a.show(disk).ok()?));
    Report {
        name: disk.name().to_string(),
        export: export.kind().facts().name.to_string(),
        transport: export.transport().map(str::to_string),
        device: server.device(),
        state: match &failure {
            Some(_) => WriteState::ExportEnded,
            None => live.map_or(WriteState::NoSize, |live| live.refusals.state()),
        },
        export_failure: failure,
        warnings: server.all_warnings(),
        restoring: live.and_then(|live| live.restoring()?.report(&live.store)),
        size_bytes: disk.size_bytes(),
        volatile: true,
        created_unix_s: disk.created_unix_s(),
        codec: codec(disk, live),
        original_bytes: mm.orig_data_size,
        compressed_bytes: mm.compr_data_size,
        ratio: ratio(
            stored,
            stored.saturating_sub(written_back),
            mm.mem_used_total,
            memory.slots + memory.links,
        ),
        pages: PagesReport {
            stored,
            compressed: stored.saturating_sub(mm.same_pages + mm.huge_pages + written_back),
            same_filled: mm.same_pages,
            raw: mm.huge_pages,
            written_back,
            compacted: mm.pages_compacted,
        },
        memory: MemoryReport {
            pool_bytes: mm.mem_used_total,
            pool_max_bytes: mm.mem_used_max,
            limit_bytes: (mm.mem_limit > 0).then_some(mm.mem_limit),
            slot_table_bytes: memory.slots + memory.links,
            ready_bytes: memory.ready,
            rings: export.rings(),
        },
        writeback,
        recompression: live.and_then(recompress_report::status),
        server: ServerReport::of_this_process(),
        keeper: KeeperReport::new(&server.dir, server.not_kept.as_deref()),
        confinement: server.confinement.clone(),
        io: io.collect(),
        events: EventsReport {
            failed_reads: stats.io.failed_reads,
            failed_writes: stats.io.failed_writes,
            refused_writes: live.map_or(0, |live| live.refusals.total()),
            last_refused_write_unix_s: live.and_then(|live| live.refusals.last_unix_s()),
            invalid_requests: stats.io.invalid_io,
            discarded_pages: stats.io.notify_free,
            streams_borrowed: stats.streams.borrowed,
            stream_waits: stats.streams.waited,
            slow_writes: stats.slow_writes,
        },
        used_by: export.users(),
        clients: export.clients(),
        attributes: attributes::all().filter_map(shown).collect(),
    }
}

fn codec(disk: &Disk, live: Option<&RunningDisk>) -> CodecReport {
    match live {
        Some(live) => {
            let (name, level) = live.store.codec();
            CodecReport { name: name.to_string(), level, dictionary_bytes: live.dictionary_bytes }
        }
        None => {
            let codec = disk.setup().primary();
            let dictionary_bytes = codec.dictionary.map_or(0, |d| d.len() as u64);
            CodecReport { name: codec.name, level: codec.level, dictionary_bytes }
        }
    }
}

/// The size classes of the pool of `disk` that have pages. Takes the lock of each class for a moment.
pub fn classes(disk: &Disk) -> Vec<ClassReport> {
    let report = |class: ClassStats| {
        let (size_bytes, pool_bytes) = (class.stride_bytes as u64, class.frames * PAGE_SIZE as u64);
        ClassReport {
            size_bytes,
            objects: class.live,
            pages: class.frames,
            unused_bytes: pool_bytes.saturating_sub(class.live * size_bytes),
        }
    };
    disk.running().map_or_else(Vec::new, |live| live.store.class_stats().into_iter().map(report).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_counts_only_pages_in_memory() {
        assert_eq!(ratio(0, 0, 0, 4096), None);
        // 100 pages compressed to half of their size, and 16 bytes of slot each.
        let alone = ratio(100, 100, 204_800, 1600).unwrap();
        assert!((1.9..2.0).contains(&alone), "{alone}");
        // The same with a million written-back pages, whose slots do not count.
        let with_others = ratio(1_000_100, 100, 204_800, 16_001_600).unwrap();
        assert!((with_others - alone).abs() < 0.001, "{with_others}");
    }
}
