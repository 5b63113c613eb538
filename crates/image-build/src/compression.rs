//! The compressors of clusters, and their levels.

use pagefold_image::format::config::Algorithm;

/// A compressor of image clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// LZ4, fast.
    Lz4,
    /// LZ4, smaller; levels 1 to 12.
    Lz4Hc,
    /// Zstandard; levels 1 to 22.
    Zstd,
    /// Deflate; levels 1 to 12.
    Deflate,
    /// LZMA; levels 0 to 9.
    Lzma,
}

/// A method with the range of its levels and the default.
struct MethodRow {
    method: Method,
    name: &'static str,
    levels: Option<(i32, i32)>,
    default: i32,
    /// The level for contents in which a long search finds nothing.
    light: i32,
}

const METHODS: [MethodRow; 5] = [
    MethodRow { method: Method::Lz4, name: "lz4", levels: None, default: 0, light: 0 },
    MethodRow { method: Method::Lz4Hc, name: "lz4hc", levels: Some((1, 12)), default: 9, light: 3 },
    MethodRow { method: Method::Zstd, name: "zstd", levels: Some((1, 22)), default: 12, light: 3 },
    MethodRow { method: Method::Deflate, name: "deflate", levels: Some((1, 12)), default: 9, light: 3 },
    MethodRow { method: Method::Lzma, name: "lzma", levels: Some((0, 9)), default: 6, light: 1 },
];

impl Method {
    /// The format that kernels decode.
    pub fn algorithm(self) -> Algorithm {
        match self {
            Method::Lz4 | Method::Lz4Hc => Algorithm::Lz4,
            Method::Zstd => Algorithm::Zstd,
            Method::Deflate => Algorithm::Deflate,
            Method::Lzma => Algorithm::MicroLzma,
        }
    }

    fn row(self) -> &'static MethodRow {
        // The table has a row for each method; a test counts them.
        METHODS.iter().find(|row| row.method == self).unwrap_or(&METHODS[0])
    }
}

/// A method with its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Compression {
    /// The method.
    pub method: Method,
    /// The level; 0 for a method without levels.
    pub level: i32,
}

impl Compression {
    /// The default level of a method.
    pub fn of(method: Method) -> Self {
        Compression { method, level: method.row().default }
    }

    /// The same method, at a level that does not search long.
    pub fn light(self) -> Self {
        Compression { level: self.level.min(self.method.row().light), ..self }
    }

    /// How far back the compression may refer in an image with clusters of up to `cluster_bytes`, bytes: a decoder needs as
    /// much memory. `None` for LZ4, whose window is a separate option.
    pub fn window_bytes(self, cluster_bytes: u32) -> Option<u32> {
        match self.method {
            Method::Lz4 | Method::Lz4Hc => None,
            // Eight clusters, at most 1 MiB, which is the format's limit.
            Method::Zstd => Some((8 * cluster_bytes).next_power_of_two().min(1 << 20)),
            Method::Deflate => Some(32 << 10),
            Method::Lzma => Some((4 * cluster_bytes).clamp(32 << 10, 8 << 20)),
        }
    }

    /// Parses `zstd` or `zstd:12`; `none` stores files plain. The error says what is possible.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        if text == "none" {
            return Ok(None);
        }
        let (name, level) = match text.split_once([':', ',']) {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let Some(row) = METHODS.iter().find(|row| row.name == name) else {
            let names: Vec<_> = METHODS.iter().map(|row| row.name).collect();
            return Err(format!("unknown compression '{name}'; there are {}, none", names.join(", ")));
        };
        let level = match (level, row.levels) {
            (None, _) => row.default,
            (Some(_), None) => return Err(format!("{name} has no levels; lz4hc compresses better")),
            (Some(level), Some((min, max))) => match level.parse() {
                Ok(level) if (min..=max).contains(&level) => level,
                _ => return Err(format!("level '{level}' of {name}; it has {min} to {max}")),
            },
        };
        Ok(Some(Compression { method: row.method, level }))
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let row = self.method.row();
        match row.levels {
            None => f.write_str(row.name),
            Some(_) => write!(f, "{}:{}", row.name, self.level),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions_are_parsed_as_they_are_printed() {
        for row in &METHODS {
            let default = Compression::parse(row.name).unwrap().unwrap();
            assert_eq!(default, Compression::of(row.method));
            assert_eq!(Compression::parse(&default.to_string()), Ok(Some(default)));
        }
        assert_eq!(Compression::parse("none"), Ok(None));
        for wrong in ["", "zstd:0", "zstd:23", "lz4:1", "gzip", "lzma:x", "zstd:"] {
            assert!(Compression::parse(wrong).is_err(), "{wrong}");
        }
    }
}
