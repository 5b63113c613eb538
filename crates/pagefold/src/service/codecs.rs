//! The codec asked for, checked against the codec table before any server starts.

use super::config::CodecConfig;
use crate::failure::{Failure, Outcome};
use pagefold_codec::{Codec, CodecSpec};

/// What the codec crate is asked for.
pub fn spec(config: &CodecConfig) -> CodecSpec {
    CodecSpec { name: config.name.clone(), level: config.level, dictionary: config.dictionary.clone() }
}

/// Prepares the codec once, so that a wrong name, level or dictionary is answered at once.
pub fn check(config: &CodecConfig) -> Outcome<()> {
    Codec::new(&spec(config)).map(|_| ()).map_err(|e| Failure::usage(e.to_string()))
}

/// The table for the manual page.
pub fn help() -> String {
    let mut text = String::from("Codecs:");
    for b in pagefold_codec::table() {
        let levels = b.levels.map(|l| format!("; levels {} to {}, default {}", l.min, l.max, l.default));
        let dictionary = if b.dictionary { "; takes a dictionary" } else { "" };
        text.push_str(&format!("\n  {:<9} {}{}{dictionary}", b.name, b.summary, levels.unwrap_or_default()));
    }
    text
}
