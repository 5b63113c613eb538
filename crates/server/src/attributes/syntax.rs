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
/// As in the kernel, a number that is too large keeps its lowest 64 bits.
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
    let number = digits.chars().fold(0u64, |n, c| n.wrapping_mul(u64::from(radix)).wrapping_add(digit(c)));
    let shift = match rest.bytes().next().map(|b| b.to_ascii_uppercase()) {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        Some(b'P') => 50,
        Some(b'E') => 60,
        _ => 0,
    };
    Some(number.wrapping_shl(shift))
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
        return Err("it takes a number".into());
    }
    match u64::from_str_radix(digits, radix) {
        Ok(number) if number <= max => Ok(number),
        _ => Err(Invalid { errno: libc::ERANGE, why: format!("it takes a number up to {max}") }),
    }
}

/// A switch: y, t, 1 or on; n, f, 0 or off. Only the first letters count.
pub fn kstrtobool(text: &str) -> Result<bool, Invalid> {
    match text.to_ascii_lowercase().as_bytes() {
        [b'y' | b't' | b'1', ..] | [b'o', b'n', ..] => Ok(true),
        [b'n' | b'f' | b'0', ..] | [b'o', b'f', ..] => Ok(false),
        _ => Err("it takes 1 or 0, on or off".into()),
    }
}

/// The words of a text: pairs `KEY=VALUE`, and keys alone.
pub fn words(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split_whitespace().map(|word| match word.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (word, None),
    })
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
            ("18446744073709551617", Some(1)),
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
