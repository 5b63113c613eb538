//! The codec of a disk: its check before a server is started, and the help text about codecs.

use crate::log;
use crate::similar::did_you_mean;
use pagefold_codec::{Codec, CodecError, CodecSpec};
use pagefold_control::config::CodecConfig;
use pagefold_control::error::{CliError, Result};

/// Converts the configuration of a codec.
pub fn spec(config: &CodecConfig) -> CodecSpec {
    CodecSpec {
        name: config.name.clone(),
        level: config.level,
        dictionary: config.dictionary.clone(),
        window_bits: config.window_bits,
    }
}

/// The configuration without the parameters that the algorithm does not have, and with a level that it has: as zram does,
/// `algorithm_params` takes them for any algorithm. The log names them. zram refuses only levels of deflate.
pub fn applicable(config: &CodecConfig) -> CodecConfig {
    let mut applicable = config.clone();
    let Ok(backend) = pagefold_codec::backend(&config.name) else { return applicable };
    let mut ignored = Vec::new();
    if backend.levels.is_none() && applicable.level.take().is_some() {
        ignored.push("level");
    }
    if !backend.dictionary && applicable.dictionary.take().is_some() {
        ignored.push("dictionary");
    }
    if !backend.window_bits && applicable.window_bits.take().is_some() {
        ignored.push("deflate.winbits");
    }
    if let (Some(levels), Some(level)) = (backend.levels, applicable.level)
        && config.name != "deflate"
    {
        applicable.level = Some(level.clamp(levels.min, levels.max));
    }
    if !ignored.is_empty() {
        log::warning(format_args!("{} has no {}, which was ignored", config.name, ignored.join(" and no ")));
    }
    applicable
}

/// A codec without parameters.
pub fn plain(name: &str) -> CodecConfig {
    CodecConfig { name: name.to_string(), ..CodecConfig::default() }
}

/// Checks name, level and dictionary by preparing the codec.
pub fn check(config: &CodecConfig) -> Result<()> {
    Codec::new(&spec(config)).map(|_| ()).map_err(|e| {
        let meant = match &e {
            CodecError::Unknown { name, .. } => {
                did_you_mean(name, pagefold_codec::table().iter().map(|backend| backend.name))
            }
            _ => String::new(),
        };
        CliError::usage(format!("{e}{meant}"))
    })
}

/// The level of a codec where none is chosen, if it has levels.
pub fn default_level(name: &str) -> Option<i32> {
    pagefold_codec::backend(name).ok()?.levels.map(|levels| levels.default)
}

/// The names of the kernel's codecs, `selected` in brackets, as zram prints `comp_algorithm`, and in its order: those of
/// lzo come first. A space follows each. Scripts for zram choose from this list, so a codec that zram lacks is in it only
/// if it is selected.
pub fn list(selected: &str) -> String {
    let listed = pagefold_codec::table().iter().filter(|backend| backend.in_zram || backend.name == selected);
    let mut names: Vec<_> = listed.map(|backend| backend.name).collect();
    names.sort_by_key(|name| match *name {
        "lzo-rle" => 0,
        "lzo" => 1,
        _ => 2,
    });
    let name = |name: &str| if name == selected { format!("[{name}] ") } else { format!("{name} ") };
    names.into_iter().map(name).collect()
}

/// The table of codecs for help and the manual page.
pub fn help() -> String {
    let mut text = String::from("Codecs:");
    for b in pagefold_codec::table() {
        let levels = b.levels.map(|l| format!("; levels {} to {}, default {}", l.min, l.max, l.default));
        let dictionary = if b.dictionary { "; takes a dictionary" } else { "" };
        text.push_str(&format!("\n  {:<9} {}{}{dictionary}", b.name, b.summary, levels.unwrap_or_default()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_that_of_a_kernel_with_all_algorithms() {
        assert_eq!(list("zstd"), "lzo-rle lzo lz4 lz4hc [zstd] deflate 842 ");
    }

    #[test]
    fn a_codec_that_the_kernel_lacks_is_listed_if_it_is_selected() {
        assert_eq!(list("numbers"), "lzo-rle lzo lz4 lz4hc zstd deflate 842 [numbers] ");
    }
}
