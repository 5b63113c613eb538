//! Attributes of recompression, as in zram.

use super::attribute::{Attribute, When};
use super::syntax::{self, Invalid, Syntax};
use super::values::{self, Value};
use crate::disk;
use crate::{errors, log};
use pagefold_control::error::Result;
use pagefold_store::recompress::{RecompressError, RecompressRequest};

pub(super) static TABLE: &[Attribute] = &[
    Attribute::new(
        "recompress",
        "pages",
        "recompresses pages, as 'disk recompress' does. Takes zram's words, separated by spaces: \
         type=idle, type=huge or type=huge_idle; threshold=BYTES; max_pages=N; algo=NAME or priority=1 \
         to 3; 'all' for none of them",
    )
    .file(0o200)
    .when(When::WithSize)
    .changed(words, |t, v| match v {
        Value::Recompress(request) => t.recompress(&request),
        _ => Ok(()),
    }),
    Attribute::new(
        "recompress_busy",
        "per cent",
        "automatic recompression waits while the pressure in /proc/pressure (time stalled in the last \
         ten seconds, CPU or I/O) is above this; 0: it never waits",
    )
    .when(When::WithSize)
    .shown(|d| Ok(d.store()?.recompress_busy_percent().to_string()))
    .changed(values::percent, |t, v| {
        t.disk().store()?.set_recompress_busy_percent(v.percent());
        Ok(())
    }),
    Attribute::new(
        "idle",
        "seconds",
        "marks pages as idle until they are accessed. Takes all, or a time such as 3600 or 1h: then \
         exactly the pages not accessed for that long are marked. Times above 8192 s count as 8192 s",
    )
    .file(0o200)
    .when(When::WithSize)
    .changed(idle, |t, v| {
        t.disk().store()?.mark_idle(v.number().min(disk::AGE_MAX_S));
        Ok(())
    }),
];

fn words(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    let known = ["type", "threshold", "max_pages", "algo", "priority"];
    let request: Result<RecompressRequest, RecompressError> = match syntax {
        Syntax::Kernel => known_words("recompress", text, &known).parse(),
        // Nothing to write would be zram's form; a command line needs a word.
        Syntax::Command => (if text == "all" { "" } else { text }).parse(),
    };
    request.map(Value::Recompress).map_err(|e| invalid(&e, e.errno()))
}

/// The error of a request that cannot be parsed.
pub(super) fn invalid(e: &dyn std::fmt::Display, errno: i32) -> Invalid {
    Invalid { errno, why: errors::with_errno(e, errno) }
}

/// The words of `text` whose key is one of `known`, and those without a value. As the kernel does, the others are ignored;
/// the log names them.
pub(super) fn known_words(attribute: &str, text: &str, known: &[&str]) -> String {
    let is_known = |(key, value): &(&str, Option<&str>)| value.is_none() || known.contains(key);
    let (known, others): (Vec<_>, Vec<_>) = syntax::words(text).partition(is_known);
    for (key, _) in others {
        log::warning(format_args!("{attribute}: the key {key:?} is unknown, and was ignored"));
    }
    let word = |(key, value): (&str, Option<&str>)| value.map_or(key.to_string(), |v| format!("{key}={v}"));
    known.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

fn idle(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match (text.strip_suffix('\n').unwrap_or(text), syntax) {
        ("all", _) => Ok(Value::Number(0)),
        (_, Syntax::Kernel) => syntax::kstrtou(text, 0, u64::from(u32::MAX))
            .map(Value::Number)
            .map_err(|_| "expected 'all', or an age in seconds".into()),
        _ => values::seconds(text, syntax).map_err(|e| format!("{}; or 'all'", e.why).into()),
    }
}
