//! The files of `mkfs.erofs --compress-hints`: largest clusters and compressors of files whose paths match an expression.
//!
//! A line is a number of bytes, the number of a compressor of `-z` if it is not the first, and an extended regular
//! expression. 0 bytes: the files are stored uncompressed. A number that no image can have stands for that of `-C`.

use super::compressor::Compressor;
use crate::cli::output;
use crate::image::open::path_failure;
use pagefold_control::error::{CliError, Result};
use pagefold_image_build::{BLOCK_BYTES, CLUSTER_BYTES_MAX, Pattern, Rule};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest file of hints.
const BYTES_MAX: u64 = 16 << 20;

/// Reads a file of hints.
pub fn read(path: &Path, compressors: &[Compressor]) -> Result<Vec<Rule>> {
    let shown = path.display();
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|e| path_failure(format!("reading the hints '{shown}'"), &e))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(CliError::usage(format!("'{shown}' is longer than 16 MiB")));
    }
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let rules = lines.map(|(number, line)| {
        rule(line, compressors).map_err(|e| CliError::usage(format!("line {number} of '{shown}': {e}")))
    });
    rules.collect()
}

fn rule(line: &str, compressors: &[Compressor]) -> Result<Rule, String> {
    let (bytes, rest) = line.trim().split_once([' ', '\t']).ok_or("it has no expression")?;
    let bytes: u64 = bytes.parse().map_err(|_| format!("'{bytes}' is no number of bytes"))?;
    let rest = rest.trim_start();
    let (index, expression) = match rest.split_once([' ', '\t']) {
        Some((index, expression)) if index.bytes().all(|byte| byte.is_ascii_digit()) => {
            (index.parse().map_err(|_| format!("there is no compressor {index}"))?, expression.trim_start())
        }
        _ => (0, rest),
    };
    let compressor = compressors.get(index);
    if compressor.is_none() && (index, bytes) != (0, 0) {
        return Err(format!("-z names no compressor {index}"));
    }
    let is_possible = bytes.is_multiple_of(BLOCK_BYTES.into()) && bytes <= CLUSTER_BYTES_MAX.into();
    if !is_possible {
        output::note(&format!("clusters of {bytes} bytes are not possible; '{expression}' gets those of -C"));
    }
    Ok(Rule {
        pattern: Pattern::regex(expression)?,
        compression: compressor.filter(|_| bytes > 0).map(|compressor| compressor.compression),
        cluster_bytes: u32::try_from(bytes).ok().filter(|bytes| is_possible && *bytes > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_rules() {
        let compressors = Compressor::parse_all("lz4:zstd").unwrap();
        let one = |line| {
            let Rule { pattern, compression, cluster_bytes } = rule(line, &compressors).unwrap();
            (pattern.text().to_string(), compression.map(|c| c.to_string()), cluster_bytes)
        };
        let lz4 = || Some("lz4".to_string());
        assert_eq!(one("0        \\.c$"), ("\\.c$".into(), None, None));
        assert_eq!(one("8192\t\\.h$"), ("\\.h$".into(), lz4(), Some(8192)));
        assert_eq!(one("16384 1 ^usr/a b"), ("^usr/a b".into(), Some("zstd:3".into()), Some(16384)));
        assert_eq!(one("1048577 \\.am$"), ("\\.am$".into(), lz4(), None));
        for wrong in ["0", "x a", "4096 2 a", "4096 ("] {
            assert!(rule(wrong, &compressors).is_err(), "{wrong}");
        }
        assert!(rule("4096 a", &[]).is_err() && rule("0 a", &[]).is_ok());
    }
}
