//! The values of `mkfs.erofs -z`: a compressor with its level and dictionary, or several with colons between them.

use pagefold_control::error::{CliError, Result};
use pagefold_image_build::{Compression, Method};

/// A compressor of a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compressor {
    pub compression: Compression,
    /// The most that a decoder may have to remember, bytes.
    pub window_bytes_max: Option<u32>,
}

/// A name with the levels of mkfs.erofs. Level 0 of all but LZMA stands for the default, or for no compression; here for the
/// lowest level.
struct Row {
    name: &'static str,
    method: Method,
    default: i32,
    max: i32,
}

const ROWS: [Row; 6] = [
    Row { name: "lz4", method: Method::Lz4, default: 0, max: 0 },
    Row { name: "lz4hc", method: Method::Lz4Hc, default: 9, max: 12 },
    Row { name: "lzma", method: Method::Lzma, default: 6, max: 9 },
    Row { name: "deflate", method: Method::Deflate, default: 1, max: 9 },
    Row { name: "libdeflate", method: Method::Deflate, default: 1, max: 12 },
    Row { name: "zstd", method: Method::Zstd, default: 3, max: 22 },
];

/// Levels of LZMA from here on ask for a longer search of the level that is this much lower.
const LZMA_EXTREME: i32 = 100;

impl Compressor {
    /// Parses `lz4hc,level=12:zstd,3`.
    pub fn parse_all(text: &str) -> Result<Vec<Self>> {
        text.split(':').map(Self::parse).collect()
    }

    fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let Some(row) = ROWS.iter().find(|row| row.name == name) else {
            let names = ROWS.map(|row| row.name).join(", ");
            return Err(CliError::usage(format!("unknown compressor '{name}'; there are {names}")));
        };
        let (mut level, mut window_bytes_max) = (row.default, None);
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or(("level", part));
            let wrong = || CliError::usage(format!("{name}: '{value}' is no value of {key}"));
            match key {
                "level" => level = row.level(value.parse().map_err(|_| wrong())?).ok_or_else(wrong)?,
                "dictsize" => window_bytes_max = Some(value.parse().map_err(|_| wrong())?),
                "lc" | "lp" | "pb" => {
                    return Err(CliError::usage(format!("{name}: {key} is not possible; leave it out")));
                }
                _ => return Err(CliError::usage(format!("{name}: unknown option '{key}'"))),
            }
        }
        Ok(Compressor { compression: Compression { method: row.method, level }, window_bytes_max })
    }

    /// Fails if a decoder of clusters of up to `cluster_bytes` has to remember more than is allowed.
    pub fn check_window(&self, cluster_bytes: u32) -> Result<()> {
        match (self.window_bytes_max, self.compression.window_bytes(cluster_bytes)) {
            (Some(max), Some(window)) if window > max => Err(CliError::usage(format!(
                "dictsize={max} is not possible: with clusters of {cluster_bytes} bytes the dictionary has {window}; choose \
                 that, or smaller clusters with -C"
            ))),
            _ => Ok(()),
        }
    }
}

impl Row {
    fn level(&self, given: i32) -> Option<i32> {
        match self.method {
            Method::Lzma if given >= LZMA_EXTREME => self.level(given - LZMA_EXTREME),
            Method::Lz4 | Method::Lzma => Some(given).filter(|level| (0..=self.max).contains(level)),
            _ => Some(given.max(1)).filter(|_| (0..=self.max).contains(&given)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressors_of_erofs_utils_are_understood() {
        let one = |text: &str| Compressor::parse_all(text).unwrap()[0].compression.to_string();
        for (text, wanted) in [
            ("lz4", "lz4"),
            ("lz4hc", "lz4hc:9"),
            ("lz4hc,12", "lz4hc:12"),
            ("lz4hc,level=0", "lz4hc:1"),
            ("zstd", "zstd:3"),
            ("zstd,level=22,dictsize=1048576", "zstd:22"),
            ("lzma,109", "lzma:9"),
            ("lzma,level=0", "lzma:0"),
            ("libdeflate,level=12", "deflate:12"),
            ("deflate,9", "deflate:9"),
        ] {
            assert_eq!(one(text), wanted, "{text}");
        }
        assert_eq!(Compressor::parse_all("lz4:zstd,3:lzma").unwrap().len(), 3);
        for wrong in
            ["unknownalg", "", "lz4,1", "zstd,23", "zstd,level=x", "lzma,lc=3", "lzma,110", "zstd,a=1"]
        {
            assert!(Compressor::parse_all(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_dictionary_may_not_be_larger_than_allowed() {
        let small = Compressor::parse_all("zstd,dictsize=65536").unwrap()[0];
        assert!(small.check_window(4096).is_ok() && small.check_window(65536).is_err());
        assert!(Compressor::parse_all("lz4").unwrap()[0].check_window(1 << 20).is_ok());
    }
}
