//! Compression by path: the first rule whose pattern matches a file decides.
//!
//! Patterns are those of shells (crate `fast-glob`). A pattern without a slash is compared with the last name of a path,
//! as in `*.so`; one with a slash with the path from the root, as in `usr/lib/**`. `*` does not cross a slash. A slash or
//! `./` at the beginning stands for the root, and a slash at the end has no meaning: a pattern matches directories and
//! files alike.

use super::compression::Compression;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A pattern of paths.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: Arc<str>,
    /// The pattern that paths are compared with, without the slashes and dots around it.
    glob: Arc<str>,
    of_names: bool,
    /// Whether it has matched a path. Clones share it.
    has_matched: Arc<AtomicBool>,
}

impl Pattern {
    /// Parses a pattern. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rooted = text.strip_prefix('/').or_else(|| text.strip_prefix("./"));
        let path = rooted.unwrap_or(text);
        let path = path.strip_suffix('/').unwrap_or(path);
        // In the crate's syntax an exclamation mark at the beginning negates the pattern; in a shell's it is a character.
        let glob = if path.starts_with('!') { Cow::from(format!("\\{path}")) } else { Cow::from(path) };
        fast_glob::validate(&*glob).map_err(|e| format!("the pattern '{text}' is invalid: {e}"))?;
        let (of_names, has_matched) = (rooted.is_none() && !path.contains('/'), Arc::default());
        Ok(Pattern { text: text.into(), glob: glob.into(), of_names, has_matched })
    }

    /// The pattern as it was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the pattern, or a clone of it, has matched a path so far.
    pub fn has_matched(&self) -> bool {
        self.has_matched.load(Ordering::Relaxed)
    }

    /// Whether the pattern matches a path, which has no slash at its beginning.
    pub fn matches(&self, path: &[u8]) -> bool {
        let name_start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let compared = if self.of_names { &path[name_start..] } else { path };
        let matches = fast_glob::glob_match(&*self.glob, compared);
        if matches {
            self.has_matched.store(true, Ordering::Relaxed);
        }
        matches
    }

    /// Whether the pattern is a slash, and so names the root and nothing else.
    pub fn matches_root(&self) -> bool {
        let is_root = matches!(&*self.text, "/" | "./");
        if is_root {
            self.has_matched.store(true, Ordering::Relaxed);
        }
        is_root
    }

    /// Whether one of the patterns matches a path. All are compared, so that each knows whether it has matched.
    pub fn any_matches(patterns: &[Pattern], path: &[u8]) -> bool {
        patterns.iter().filter(|pattern| pattern.matches(path)).count() > 0
    }
}

/// Rules in the order in which they are tried.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<(Pattern, Option<Compression>)>);

impl Rules {
    /// Parses `PATTERN=COMPRESSION`, as in `*.so=zstd:12`, and adds it after the others.
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

    /// The compression for a path: that of the first rule that matches, if there is one.
    pub fn find(&self, path: &[u8]) -> Option<Option<Compression>> {
        let rule = self.0.iter().find(|(pattern, _)| pattern.matches(path));
        rule.map(|(_, compression)| *compression)
    }

    /// The patterns of the rules.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.0.iter().map(|(pattern, _)| pattern)
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
        let chosen = |path: &str| rules.find(path.as_bytes()).flatten().map(|c| c.to_string());
        assert_eq!(chosen("usr/lib/a.so").as_deref(), Some("zstd:12"));
        assert_eq!(chosen("usr/lib/x/a").as_deref(), Some("lzma:6"));
        assert_eq!(chosen("lib/a"), None);
        assert_eq!(rules.find(b"a.jpg"), Some(None));
        assert_eq!(rules.find(b"a"), None);
        for wrong in ["*.so", "[=lz4", "*=gzip"] {
            assert!(rules.push(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn slashes_and_dots_around_a_pattern_are_understood() {
        let matches = |pattern: &str, path: &str| Pattern::parse(pattern).unwrap().matches(path.as_bytes());
        for pattern in ["d", "d/", "/d", "./d", "/d/", "./d/"] {
            assert!(matches(pattern, "d"), "{pattern}");
            // One without a slash at its beginning is that of a name anywhere.
            assert_eq!(matches(pattern, "a/d"), pattern.starts_with('d'), "{pattern}");
        }
        assert!(matches("a/d/", "a/d") && !matches("a/d/", "d") && matches("./a/*.so", "a/b.so"));
    }

    #[test]
    fn wildcards_are_those_of_a_shell() {
        let matches = |pattern: &str, path: &[u8]| Pattern::parse(pattern).unwrap().matches(path);
        for (pattern, path, wanted) in [
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("a/?", "a/b", true),
            ("/?a", "/a", false),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("**/c", "a/b/c", true),
            ("**/c", "c", true),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/x/y/c", true),
            ("*.{so,a}", "lib/x.so", true),
            ("*.{so,a}", "lib/x.sob", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("*", ".hidden", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("!a", "!a", true),
            ("!a", "b", false),
            ("/!(a)", "b", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, path.as_bytes()), wanted, "{pattern} {path}");
        }
        assert!(matches("*.\u{e9}", b"\xff.\xc3\xa9") && matches("a*", b"a\xff"));
        for invalid in ["[", "a{b", "a\\"] {
            assert!(Pattern::parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_pattern_knows_whether_it_has_matched() {
        let patterns = ["*.a", "*.b", "x*"].map(|text| Pattern::parse(text).unwrap());
        let clones = patterns.clone();
        assert!(Pattern::any_matches(&clones, b"x.a") && !Pattern::any_matches(&clones, b"y"));
        assert_eq!(patterns.each_ref().map(Pattern::has_matched), [true, false, true]);
    }
}
