//! The text of systemd units: names of mount units, and quoting. Reference: systemd.unit(5), systemd.service(5),
//! systemd-escape(1).

use std::fmt::Write;

/// The name of the unit of a path without its suffix, as `systemd-escape --path` prints it. `path` is absolute and has no
/// empty components, `.` or `..`.
pub fn escape_path(path: &str) -> String {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return "-".into();
    }
    let mut name = String::new();
    for (at, byte) in path.bytes().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at == 0 => name.push_str("\\x2e"),
            b'.' | b':' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => name.push(byte.into()),
            // Writing to a string does not fail.
            _ => _ = write!(name, "\\x{byte:02x}"),
        }
    }
    name
}

/// The value of a setting that systemd does not split: without specifiers.
pub fn value(text: &str) -> String {
    text.replace('%', "%%")
}

/// A word of a setting that systemd splits at spaces, such as a path of RequiresMountsFor=.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_.,:=+@%$-".contains(c) || !c.is_ascii();
    match !text.is_empty() && text.chars().all(plain) {
        true => value(text),
        false => format!("\"{}\"", value(text).replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

/// A word of a command line: without variables too.
pub fn argument(text: &str) -> String {
    word(text).replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names are those that systemd-escape prints.
    #[test]
    fn paths_are_escaped_as_systemd_does() {
        let cases = [
            ("/var/log", "var-log"),
            ("/", "-"),
            ("/srv/a-b/c d", r"srv-a\x2db-c\x20d"),
            ("/.hidden/.x", r"\x2ehidden-.x"),
            ("/a\\b/é%$", r"a\x5cb-\xc3\xa9\x25\x24"),
            ("/x:y_z.1", "x:y_z.1"),
        ];
        for (path, name) in cases {
            assert_eq!(escape_path(path), name);
        }
    }

    #[test]
    fn words_are_quoted() {
        assert_eq!(word("/var/log"), "/var/log");
        assert_eq!(word("/a b"), "\"/a b\"");
        assert_eq!(word(r#"/a"\"#), r#""/a\"\\""#);
        assert_eq!(word("100%"), "100%%");
        assert_eq!(word(";"), "\";\"");
        assert_eq!(argument("--x=$HOME '%n'"), "\"--x=$$HOME '%%n'\"");
        assert_eq!(argument(""), "\"\"");
    }
}
