//! Compression by path: the first rule whose pattern matches a file decides.
//!
//! Patterns are those of shells (crate `globset`). A pattern without a slash is compared with the last name of a path,
//! as in `*.so`; one with a slash with the path from the root, as in `usr/lib/**`. `*` does not cross a slash.

use super::options::Compression;
use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A pattern of paths.
#[derive(Debug, Clone)]
pub struct Pattern {
    matcher: GlobMatcher,
    of_names: bool,
}

impl Pattern {
    /// Parses a pattern. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let glob = GlobBuilder::new(text.strip_prefix('/').unwrap_or(text)).literal_separator(true).build();
        let glob = glob.map_err(|e| format!("the pattern '{text}' is not understood: {}", e.kind()))?;
        Ok(Pattern { matcher: glob.compile_matcher(), of_names: !text.contains('/') })
    }

    /// Whether the pattern matches a path, which has no slash at its beginning.
    pub fn matches(&self, path: &[u8]) -> bool {
        let name_start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let compared = if self.of_names { &path[name_start..] } else { path };
        self.matcher.is_match(OsStr::from_bytes(compared))
    }
}

/// Rules in the order in which they are tried.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<(Pattern, Option<Compression>)>);

impl Rules {
    /// Parses `PATTERN=COMPRESSION`, as in `*.so=zstd:12`, and adds it behind the others.
    pub fn push(&mut self, text: &str) -> Result<(), String> {
        let Some((pattern, compression)) = text.rsplit_once('=') else {
            return Err(format!("'{text}' is no rule; a rule is PATTERN=COMPRESSION, as in '*.so=zstd:12'"));
        };
        self.0.push((Pattern::parse(pattern)?, Compression::parse(compression)?));
        Ok(())
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The compression for a path: that of the first rule that matches, or `otherwise`.
    pub fn choose(&self, path: &[u8], otherwise: Option<Compression>) -> Option<Compression> {
        self.find(path).unwrap_or(otherwise)
    }

    /// The compression for a path, if a rule names it.
    pub fn find(&self, path: &[u8]) -> Option<Option<Compression>> {
        let rule = self.0.iter().find(|(pattern, _)| pattern.matches(path));
        rule.map(|(_, compression)| *compression)
    }

    /// The compressions of all rules.
    pub fn compressions(&self) -> impl Iterator<Item = Compression> {
        self.0.iter().filter_map(|(_, compression)| *compression)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let mut rules = Rules::default();
        for rule in ["*.so=zstd:12", "/usr/lib/**=lzma", "*.jpg=none"] {
            rules.push(rule).unwrap();
        }
        let chosen = |path: &str| rules.choose(path.as_bytes(), None).map(|c| c.to_string());
        assert_eq!(chosen("usr/lib/a.so").as_deref(), Some("zstd:12"));
        assert_eq!(chosen("usr/lib/x/a").as_deref(), Some("lzma:6"));
        assert_eq!(chosen("lib/a"), None);
        let lz4 = Compression::parse("lz4").unwrap();
        assert_eq!(rules.choose(b"a.jpg", lz4), None);
        assert_eq!(rules.choose(b"a", lz4), lz4);
        for wrong in ["*.so", "[=lz4", "*=gzip"] {
            assert!(rules.push(wrong).is_err(), "{wrong}");
        }
    }
}
