//! The kernel's syntax of numbers and switches, and the errors of parsing.
//!
//! A write to a file of the attribute tree has this syntax, a change on the command line that of [`super::values`],
//! which is stricter and has units. The functions here take what the kernel's functions of the same names take:
//! `Documentation/core-api/kernel-api.rst` ("String Conversions") and `lib/cmdline.c` describe them.

/// How the text of a change is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// From a command line: strict, because a typing error must not pass.
    Command,
    /// From a write to a file of the attribute tree, as the kernel reads it: unknown keys are ignored.
    Kernel,
}

/// Why a text is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The error number that zram returns.
    pub errno: i32,
    /// The values that the attribute takes.
    pub why: String,
}

impl From<String> for Invalid {
    fn from(why: String) -> Self {
        Invalid { errno: libc::EINVAL, why }
    }
}

impl From<&str> for Invalid {
    fn from(why: &str) -> Self {
        why.to_string().into()
    }
}

/// A number of digits with an optional suffix K, M, G, T, P or E. Anything may follow. `None` if there is no digit.
///
/// As in the kernel, a number that is too large becomes the greatest.
pub fn memparse(text: &str) -> Option<u64> {
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', digit, ..] if digit.is_ascii_hexdigit() => (16, &text[2..]),
        [b'0', ..] => (8, text),
        _ => (10, text),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if digits.is_empty() {
        return None;
    }
    let digit = |c: char| u64::from(c.to_digit(radix).unwrap_or(0));
    let number =
        digits.chars().fold(0u64, |n, c| n.saturating_mul(u64::from(radix)).saturating_add(digit(c)));
    let shift = match rest.bytes().next().map(|b| b.to_ascii_uppercase()) {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        Some(b'P') => 50,
        Some(b'E') => 60,
        _ => 0,
    };
    Some(number.saturating_mul(1 << shift))
}

/// A number up to `max`, and at most one newline. With a `radix` of 0, a prefix `0x` or `0` chooses it. Fails with EINVAL,
/// or with ERANGE if the number is too large.
pub fn kstrtou(text: &str, radix: u32, max: u64) -> Result<u64, Invalid> {
    let digits = text.strip_suffix('\n').unwrap_or(text);
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match (radix, lower.strip_prefix("0x")) {
        (0 | 16, Some(hex)) if !hex.is_empty() => (16, hex),
        (0, None) if lower.starts_with('0') => (8, &*lower),
        (0, _) => (10, &*lower),
        (radix, _) => (radix, &*lower),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err("expected a number".into());
    }
    match u64::from_str_radix(digits, radix) {
        Ok(number) if number <= max => Ok(number),
        _ => Err(Invalid { errno: libc::ERANGE, why: format!("expected a number up to {max}") }),
    }
}

/// A switch: y, t, 1 or on; n, f, 0 or off. Only the first letters count.
pub fn kstrtobool(text: &str) -> Result<bool, Invalid> {
    match text.to_ascii_lowercase().as_bytes() {
        [b'y' | b't' | b'1', ..] | [b'o', b'n', ..] => Ok(true),
        [b'n' | b'f' | b'0', ..] | [b'o', b'f', ..] => Ok(false),
        _ => Err("expected 1 or 0, on or off".into()),
    }
}

/// The words of a text: pairs `KEY=VALUE`, and keys alone. As in the kernel, quotation marks around a word or a value are
/// removed, and spaces between them belong to it.
pub fn words(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut is_quoted = false;
    let ends = move |c: char| {
        is_quoted ^= c == '"';
        c.is_ascii_whitespace() && !is_quoted
    };
    text.split(ends).filter(|word| !word.is_empty()).map(|word| {
        let word = word.strip_prefix('"').map_or(word, unquoted);
        match word.char_indices().skip(1).find(|(_, c)| *c == '=') {
            Some((at, _)) => {
                let value = &word[at + 1..];
                (&word[..at], Some(value.strip_prefix('"').map_or(value, unquoted)))
            }
            None => (word, None),
        }
    })
}

/// The text after a quotation mark, without the mark at its end.
fn unquoted(text: &str) -> &str {
    text.strip_suffix('"').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_kernel_reads_them() {
        for (text, bytes) in [
            ("4096", Some(4096)),
            ("1G\n", Some(1 << 30)),
            ("12k", Some(12 << 10)),
            ("0x1000", Some(4096)),
            ("010K", Some(8 << 10)),
            ("1.5G", Some(1)),
            ("7 apples", Some(7)),
            ("0", Some(0)),
            ("0x", Some(0)),
            ("1E", Some(1 << 60)),
            ("18446744073709551617", Some(u64::MAX)),
            ("17179869184G", Some(u64::MAX)),
            ("", None),
            ("\n", None),
            ("-1", None),
            (" 1G", None),
            ("G", None),
        ] {
            assert_eq!(memparse(text), bytes, "{text:?}");
        }
    }

    #[test]
    fn words_are_separated_as_the_kernel_separates_them() {
        let of = |text| words(text).collect::<Vec<_>>();
        assert_eq!(of(" a=1\tb \n"), [("a", Some("1")), ("b", None)]);
        assert_eq!(of(r#"a="1 2" "b=3" c="#), [("a", Some("1 2")), ("b", Some("3")), ("c", Some(""))]);
        assert_eq!(of("=1 a=b=c"), [("=1", None), ("a", Some("b=c"))]);
        assert_eq!(of(" \n"), []);
    }

    #[test]
    fn numbers_are_read_as_the_kernel_reads_them() {
        let errno = |text: &str, radix, max| kstrtou(text, radix, max).map_err(|e| e.errno);
        for (text, radix, wanted) in [
            ("1", 10, Ok(1)),
            ("+7\n", 10, Ok(7)),
            ("0x10", 0, Ok(16)),
            ("010", 0, Ok(8)),
            ("010", 10, Ok(10)),
            ("0", 0, Ok(0)),
            ("65535", 10, Ok(65535)),
            ("65536", 10, Err(libc::ERANGE)),
            ("99999999999999999999999", 10, Err(libc::ERANGE)),
            ("0x10", 10, Err(libc::EINVAL)),
            ("-1", 10, Err(libc::EINVAL)),
            (" 1", 10, Err(libc::EINVAL)),
            ("1 ", 10, Err(libc::EINVAL)),
            ("1\n\n", 10, Err(libc::EINVAL)),
            ("", 10, Err(libc::EINVAL)),
            ("08", 0, Err(libc::EINVAL)),
        ] {
            assert_eq!(errno(text, radix, 65535), wanted, "{text:?}");
        }
    }

    #[test]
    fn switches_are_read_as_the_kernel_reads_them() {
        for on in ["1", "y", "Yes\n", "on", "true", "1xyz"] {
            assert_eq!(kstrtobool(on), Ok(true), "{on}");
        }
        for off in ["0", "n", "NO", "off", "false", "0\n"] {
            assert_eq!(kstrtobool(off), Ok(false), "{off}");
        }
        for bad in ["", "\n", "2", "o", "x", " 1"] {
            assert!(kstrtobool(bad).is_err(), "{bad}");
        }
    }
}
