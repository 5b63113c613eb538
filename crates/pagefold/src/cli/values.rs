//! Parsing of values of options: words, sizes and times.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pagefold_control::config::FuseUring;
use pagefold_control::error::{CliError, Result};
use pagefold_page::{duration, size};

/// A parser that takes one of these words, each with its help and its value.
pub fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let possible = words.map(|(word, help, _)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(possible).try_map(move |text| {
        let found = words.iter().find(|(word, ..)| *word == text);
        found.map(|(.., value)| *value).ok_or("not one of the possible values")
    })
}

/// The parser of `--fuse-uring`, which disks and mounts of images have in common.
pub fn fuse_uring() -> impl TypedValueParser<Value = FuseUring> {
    const ON: &str = "Where the kernel offers it: Linux 6.14, with /sys/module/fuse/parameters/enable_uring set by the \
                      administrator; a warning where it does not";
    one_of([("auto", "As off", FuseUring::Auto), ("on", ON, FuseUring::On), ("off", "Never", FuseUring::Off)])
}

/// Parses the size that `option` has.
pub fn bytes(option: &str, text: &str) -> Result<u64> {
    size::parse(text).map_err(|e| CliError::usage(format!("{option}: {e}")))
}

/// Parses the bytes per second that `option` has, with or without `/s`.
pub fn bytes_per_s(option: &str, text: &str) -> Result<u64> {
    bytes(option, text.strip_suffix("/s").unwrap_or(text))
}

/// Parses the time in seconds that `option` has.
pub fn seconds(option: &str, text: &str) -> Result<u64> {
    duration::parse_s(text).map_err(|e| CliError::usage(format!("{option}: {e}")))
}
