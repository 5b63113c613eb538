//! Attributes of the device: its size, its memory, its statistics.

use super::attribute::{Attribute, When};
use super::syntax::{self, Invalid, Syntax};
use super::values::{self, Value};
use crate::disk;
use pagefold_page::PageCount;

/// Parses a memory limit. The kernel takes one that is too small for any page; it rounds up to pages.
fn limit(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    let bytes = values::bytes(text, syntax)?.number();
    match syntax {
        Syntax::Command => disk::check_limit(bytes)?,
        Syntax::Kernel => return Ok(Value::Number(whole_pages(bytes))),
    }
    Ok(Value::Number(bytes))
}

/// Parses the size of the device.
fn size(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match values::bytes(text, syntax)?.number() {
        0 => Err("expected a size above 0, such as 4G".into()),
        bytes => Ok(Value::Number(whole_pages(bytes))),
    }
}

fn whole_pages(bytes: u64) -> u64 {
    PageCount::covering(bytes).bytes().unwrap_or(bytes)
}

/// Parses the value of `reset`.
fn reset(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match syntax {
        Syntax::Command => values::one(text, syntax),
        Syntax::Kernel => match syntax::kstrtou(text, 10, u64::from(u16::MAX))? {
            0 => Err("expected a number above 0".into()),
            _ => Ok(Value::Trigger),
        },
    }
}

/// The statistics of the store, as zram prints them: all 0 without a size, but the limit of memory.
fn mm_stat(disk: &disk::Disk) -> String {
    match disk.running() {
        Some(live) => live.store.stats().mm.to_string(),
        None => {
            let mem_limit = disk.setup().mem_limit_bytes.map_or(0, |b| disk::limit(b).bytes());
            let mem_limit = if mem_limit == u64::MAX { 0 } else { mem_limit };
            pagefold_store::MmStat { mem_limit, ..Default::default() }.to_string()
        }
    }
}

pub(super) static TABLE: &[Attribute] = &[
    Attribute::new("size", "bytes", "size of the device, 0 if it has none yet")
        .shown(|d| Ok(d.size_bytes().to_string())),
    Attribute::new(
        "disksize",
        "bytes",
        "size of the device, by zram's name. On a disk without a size it takes one such as 4G, rounded \
         up to pages; the settings made before are fixed from then on",
    )
    .file(0o644)
    .when(When::BeforeSize)
    .shown(|d| Ok(d.size_bytes().to_string()))
    .changed(size, |t, v| t.initialise(v.number())),
    Attribute::new("initstate", "switch", "1: the disk has a size; 0: it has none yet")
        .file(0o444)
        .shown(|d| Ok(u8::from(d.running().is_some()).to_string())),
    Attribute::new(
        "reset",
        "",
        "write 1 to discard all pages, those on the backing included, and make the disk one without \
         size and with the default settings. Refused while the device is in use (EBUSY)",
    )
    .file(0o200)
    .changed(reset, |t, _| t.reset()),
    Attribute::new(
        "mem_limit",
        "bytes",
        "most memory for stored pages; a write beyond it fails and changes nothing. Takes a size such \
         as 2G; 0 for no limit",
    )
    .file(0o200)
    .shown(|d| match d.running() {
        Some(live) => Ok(live.store.stats().mm.mem_limit.to_string()),
        None => Ok(mm_stat(d).split_whitespace().nth(3).unwrap_or("0").to_string()),
    })
    .changed(limit, |t, v| {
        t.disk().lock().change_setup(|setup| {
            setup.mem_limit_bytes = Some(v.number());
            if let Some(live) = t.disk().running() {
                live.store.set_mem_limit(disk::limit(v.number()));
            }
            Ok(())
        })
    }),
    Attribute::new(
        "mem_used_max",
        "bytes",
        "highest use of memory by stored pages so far. Write 0 to reset it to the present use",
    )
    .file(0o200)
    .shown(|d| Ok(d.running().map_or(0, |live| live.store.stats().mm.mem_used_max).to_string()))
    .changed(values::zero, |t, _| {
        if let Some(live) = t.disk().running() {
            live.store.reset_mem_used_max();
        }
        Ok(())
    }),
    Attribute::new("compact", "", "write 1 to compact the pool and return free memory to the system")
        .file(0o200)
        .when(When::WithSize)
        .changed(values::one, |t, _| {
            t.disk().store()?.compact();
            Ok(())
        }),
    Attribute::new(
        "same_filled_pages_enabled",
        "switch",
        "whether a page that repeats one 8-byte word is stored as that word. Takes 1 or 0, on or off",
    )
    .shown(|d| {
        let setting = d.setup().same_filled;
        Ok(u8::from(d.running().map_or(setting, |live| live.store.same_filled_enabled())).to_string())
    })
    .changed(values::switch, |t, v| {
        t.disk().lock().change_setup(|setup| {
            setup.same_filled = v.is_on();
            if let Some(live) = t.disk().running() {
                live.store.set_same_filled_enabled(v.is_on());
            }
            Ok(())
        })
    }),
    Attribute::new(
        "debug_stat",
        "",
        "as zram prints it: a version, and two counters that are always 0 here, because no slot is \
         freed by a try alone",
    )
    .file(0o444)
    .shown(|_| Ok(format!("version: 1\n0 {:8}", 0))),
    Attribute::new(
        "mm_stat",
        "bytes and pages",
        "orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages \
         pages_compacted huge_pages huge_pages_since, as zram prints them",
    )
    .file(0o444)
    .shown(|d| Ok(mm_stat(d))),
    Attribute::new(
        "io_stat",
        "requests",
        "failed_reads failed_writes invalid_io notify_free, as zram prints them",
    )
    .file(0o444)
    .shown(|d| Ok(d.running().map(|live| live.store.stats().io).unwrap_or_default().to_string())),
    Attribute::new("latency", "", "latency histograms, which 'disk show' prints. Write 0 to reset them")
        .when(When::WithSize)
        .changed(values::zero, |t, _| {
            t.disk().running_or_error()?.meter.reset_latency();
            Ok(())
        }),
];
