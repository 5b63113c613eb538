//! Compression by path: the first rule whose pattern matches a file decides.
//!
//! Patterns are those of shells (crate `fast-glob`). A pattern without a slash is compared with the last name of a path,
//! as in `*.so`; one with a slash with the path from the root, as in `usr/lib/**`. `*` does not cross a slash. A slash or
//! `./` at the beginning stands for the root, and a slash at the end has no meaning: a pattern matches directories and
//! files alike. Those of mkfs.erofs are extended regular expressions, which match anywhere in the path from the root.

use super::compression::Compression;
use pagefold_sys::regex::Regex;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A pattern of paths.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: Arc<str>,
    syntax: Syntax,
    /// Whether it has matched a path. Clones share it.
    has_matched: Arc<AtomicBool>,
}

/// The text that paths are compared with.
#[derive(Debug, Clone)]
enum Syntax {
    /// A pattern of a shell, without the slashes and dots around it.
    Glob {
        glob: Arc<str>,
        of_names: bool,
    },
    Regex(Arc<Regex>),
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
        let syntax = Syntax::Glob { glob: glob.into(), of_names };
        Ok(Pattern { text: text.into(), syntax, has_matched })
    }

    /// Makes the pattern of one path, which may begin with a slash, and of nothing else.
    pub fn of_path(path: &str) -> Result<Self, String> {
        let mut rooted = String::from("/");
        for c in path.trim_start_matches('/').chars() {
            if "\\*?[]{}!^,".contains(c) {
                rooted.push('\\');
            }
            rooted.push(c);
        }
        Ok(Pattern { text: path.into(), ..Self::parse(&rooted)? })
    }

    /// Parses an extended regular expression of POSIX, which matches a path, without a slash at its beginning, if it matches
    /// a part of it.
    pub fn regex(text: &str) -> Result<Self, String> {
        let regex = Regex::new(text).map_err(|e| format!("the expression '{text}' is invalid: {e}"))?;
        Ok(Pattern { text: text.into(), syntax: Syntax::Regex(Arc::new(regex)), has_matched: Arc::default() })
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
        let matches = match &self.syntax {
            Syntax::Glob { glob, of_names: true } => fast_glob::glob_match(&**glob, &path[name_start..]),
            Syntax::Glob { glob, of_names: false } => fast_glob::glob_match(&**glob, path),
            Syntax::Regex(regex) => regex.matches(path),
        };
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

/// How files that match a pattern are compressed.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The files.
    pub pattern: Pattern,
    /// Their compression; `None`: they are stored plain.
    pub compression: Option<Compression>,
    /// Their largest cluster, bytes, if it is smaller than that of the options: a multiple of the block.
    pub cluster_bytes: Option<u32>,
}

/// Rules in the order in which they are tried.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Parses `PATTERN=COMPRESSION`, as in `*.so=zstd:12`, and adds it after the others.
    pub fn push(&mut self, text: &str) -> Result<(), String> {
        let Some((pattern, compression)) = text.rsplit_once('=') else {
            return Err(format!("'{text}' is no rule; a rule is PATTERN=COMPRESSION, as in '*.so=zstd:12'"));
        };
        let (pattern, compression) = (Pattern::parse(pattern)?, Compression::parse(compression)?);
        self.add(Rule { pattern, compression, cluster_bytes: None });
        Ok(())
    }

    /// Adds a rule after the others.
    pub fn add(&mut self, rule: Rule) {
        self.0.push(rule);
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rule for a path: the first that matches, if there is one.
    pub fn find(&self, path: &[u8]) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.pattern.matches(path))
    }

    /// The largest clusters of the rules that have their own, bytes.
    pub fn clusters(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter_map(|rule| rule.cluster_bytes)
    }

    /// The patterns of the rules.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.0.iter().map(|rule| &rule.pattern)
    }

    /// The compressions of all rules.
    pub fn compressions(&self) -> impl Iterator<Item = Compression> {
        self.0.iter().filter_map(|rule| rule.compression)
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
        let chosen =
            |path: &str| rules.find(path.as_bytes()).and_then(|rule| rule.compression).map(|c| c.to_string());
        assert_eq!(chosen("usr/lib/a.so").as_deref(), Some("zstd:12"));
        assert_eq!(chosen("usr/lib/x/a").as_deref(), Some("lzma:6"));
        assert_eq!(chosen("lib/a"), None);
        assert!(rules.find(b"a.jpg").is_some_and(|rule| rule.compression.is_none()));
        assert!(rules.find(b"a").is_none());
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
    fn a_path_matches_itself_and_nothing_else() {
        for path in ["a/b", "/a/b", "[a]*", "!x", "{a,b}", "a\\b?"] {
            let pattern = Pattern::of_path(path).unwrap();
            let path = path.trim_start_matches('/');
            assert!(pattern.matches(path.as_bytes()), "{path}");
            assert!(!pattern.matches(format!("x/{path}").as_bytes()), "{path}");
        }
        assert!(!Pattern::of_path("a*").unwrap().matches(b"ab"));
    }

    #[test]
    fn an_expression_matches_a_part_of_a_path() {
        let pattern = Pattern::regex("lib/.*[.]so$").unwrap();
        assert!(pattern.matches(b"usr/lib/x.so") && !pattern.matches(b"usr/lib/x.so.1"));
        assert!(Pattern::regex("(").is_err());
    }

    #[test]
    fn a_pattern_knows_whether_it_has_matched() {
        let patterns = ["*.a", "*.b", "x*"].map(|text| Pattern::parse(text).unwrap());
        let clones = patterns.clone();
        assert!(Pattern::any_matches(&clones, b"x.a") && !Pattern::any_matches(&clones, b"y"));
        assert_eq!(patterns.each_ref().map(Pattern::has_matched), [true, false, true]);
    }
}
