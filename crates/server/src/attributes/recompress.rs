//! Attributes of recompression, as in zram.

use super::{Attribute, Value};
use crate::disk::{self, Disk};
use crate::errors;
use pagefold_control::error::Result;
use pagefold_store::recompress::{RecompressError, RecompressRequest};

pub(super) static TABLE: &[Attribute] = &[
    Attribute {
        name: "recomp_algorithm",
        unit: "names",
        meaning: "the codecs that pages are compressed with again: for each priority the list of codecs, the chosen one \
                  in brackets, as zram prints it. Chosen at creation",
        show: Some(|d| Ok(recomp_algorithm(d))),
        change: None,
    },
    Attribute {
        name: "recompress",
        unit: "pages",
        meaning: "compresses pages again, as 'disk recompress' does. Takes zram's words, separated by spaces: type=idle, \
                  type=huge or type=huge_idle; threshold=BYTES; max_pages=N; algo=NAME or priority=1 to 3; 'all' for \
                  none of them",
        show: None,
        change: Some((words, |t, v| match v {
            Value::Recompress(request) => t.recompress(&request),
            _ => Ok(()),
        })),
    },
    Attribute {
        name: "recompress_busy",
        unit: "per cent",
        meaning: "automatic recompression waits while the pressure in /proc/pressure (time stalled in the last ten seconds, \
                  CPU or I/O) is above this; 0: it never waits",
        show: Some(|d| Ok(d.store().recompress_busy_percent().to_string())),
        change: Some((super::values::percent, |t, v| {
            t.disk().store().set_recompress_busy_percent(v.percent());
            Ok(())
        })),
    },
    Attribute {
        name: "idle",
        unit: "seconds",
        meaning: "marks pages as idle until they are accessed. Takes all, or a time such as 3600 or 1h: then exactly \
                  the pages not accessed for that long are marked. Times above 8192 s count as 8192 s",
        show: None,
        change: Some((idle, |t, v| {
            t.disk().store().mark_idle(v.number().min(disk::AGE_MAX_S));
            Ok(())
        })),
    },
];

fn recomp_algorithm(disk: &Disk) -> String {
    let line = |priority: u8| {
        let (name, _) = disk.store().codec_of(priority)?;
        Some(format!("#{priority}: {}", disk::codec_list(name)))
    };
    (1..=3).filter_map(line).collect::<Vec<_>>().join("\n")
}

fn words(text: &str) -> Result<Value, String> {
    // Nothing to write would be zram's form; a command line needs a word.
    let words = if text == "all" { "" } else { text };
    let request: Result<RecompressRequest, RecompressError> = words.parse();
    request.map(Value::Recompress).map_err(|e| errors::with_errno(&e, e.errno()))
}

fn idle(text: &str) -> Result<Value, String> {
    match text {
        "all" => Ok(Value::Seconds(0)),
        _ => super::values::seconds(text).map_err(|e| format!("{e}; or 'all'")),
    }
}
