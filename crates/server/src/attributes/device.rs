//! Attributes of the store and its device.

use super::values::{self, Value};
use super::{Attribute, ShowFn};
use crate::disk;

const fn shown(name: &'static str, unit: &'static str, meaning: &'static str, show: ShowFn) -> Attribute {
    Attribute { name, unit, meaning, show: Some(show), change: None }
}

/// Parses a memory limit.
fn limit(text: &str) -> Result<Value, String> {
    let value = values::bytes(text)?;
    disk::check_limit(value.number())?;
    Ok(value)
}

pub(super) static TABLE: &[Attribute] = &[
    shown("size", "bytes", "size of the device; chosen at creation", |d| Ok(d.size_bytes().to_string())),
    shown("codec", "name", "compression algorithm; chosen at creation", |d| {
        Ok(d.store().codec().0.to_string())
    }),
    shown(
        "level",
        "number",
        "compression level, or 'none' if the codec has no levels; chosen at creation",
        |d| Ok(d.store().codec().1.map_or("none".to_string(), |l| l.to_string())),
    ),
    Attribute {
        name: "mem_limit",
        unit: "bytes",
        meaning: "most memory for stored pages; a write beyond it fails and changes nothing. Takes a size such as \
                  2G; 0 for no limit",
        show: Some(|d| Ok(d.store().stats().mm.mem_limit.to_string())),
        change: Some((limit, |t, v| {
            t.disk().store().set_mem_limit(disk::limit(v.number()));
            Ok(())
        })),
    },
    Attribute {
        name: "mem_used_max",
        unit: "bytes",
        meaning: "highest use of memory by stored pages so far. Takes 0: reset to the present use",
        show: Some(|d| Ok(d.store().stats().mm.mem_used_max.to_string())),
        change: Some((values::zero, |t, _| {
            t.disk().store().reset_mem_used_max();
            Ok(())
        })),
    },
    Attribute {
        name: "compact",
        unit: "",
        meaning: "takes 1: compact the pool and return free memory to the system",
        show: None,
        change: Some((values::one, |t, _| {
            t.disk().store().compact();
            Ok(())
        })),
    },
    Attribute {
        name: "reset",
        unit: "",
        meaning: "takes 1: discard all pages, those on the backing included. Refused while the device is in use \
                  (EBUSY)",
        show: None,
        change: Some((values::one, |t, _| {
            super::refuse_if_used(t)?;
            t.disk().discard_all_pages()
        })),
    },
    Attribute {
        name: "same_filled_pages_enabled",
        unit: "switch",
        meaning: "whether a page that repeats one 8-byte word is stored as that word. Takes 1 or 0, on or off",
        show: Some(|d| Ok(u8::from(d.store().same_filled_enabled()).to_string())),
        change: Some((values::switch, |t, v| {
            t.disk().store().set_same_filled_enabled(v.is_on());
            Ok(())
        })),
    },
    shown(
        "comp_algorithm",
        "names",
        "the list of codecs, the primary one in brackets, as zram prints it; chosen at creation",
        |d| Ok(disk::codec_list(d.store().codec().0)),
    ),
    shown("disksize", "bytes", "size of the device, by zram's name", |d| Ok(d.size_bytes().to_string())),
    shown("initstate", "switch", "1: the disk has a size, by zram's name", |_| Ok("1".to_string())),
    Attribute {
        name: "max_comp_streams",
        unit: "number",
        meaning: "the number of compression streams: one for each CPU. Takes any number, which has no effect, as in \
                  zram until Linux 6.15",
        show: Some(|_| Ok(pagefold_sys::cpu::count().to_string())),
        change: Some((values::number, |_, _| Ok(()))),
    },
    shown(
        "debug_stat",
        "",
        "as zram prints it: a version, and two counters that are always 0 here, because no slot is freed by a try \
         alone",
        |_| Ok(format!("version: 1\n{:8} {:8}", 0, 0)),
    ),
    shown(
        "mm_stat",
        "bytes and pages",
        "orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages pages_compacted \
         huge_pages huge_pages_since, as zram prints them",
        |d| Ok(d.store().stats().mm.to_string()),
    ),
    shown(
        "io_stat",
        "requests",
        "failed_reads failed_writes invalid_io notify_free, as zram prints them",
        |d| Ok(d.store().stats().io.to_string()),
    ),
    Attribute {
        name: "latency",
        unit: "",
        meaning: "latency histograms, which 'disk show' prints. Takes 0: reset them",
        show: None,
        change: Some((values::zero, |t, _| {
            t.disk().meter().reset_latency();
            Ok(())
        })),
    },
];
