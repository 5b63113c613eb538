//! The values of attributes, and parsing them. [`super::syntax`] has the kernel's syntax.

use super::syntax::{self, Invalid, Syntax};
use pagefold_page::{duration, size};
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::Selection;
use std::path::PathBuf;

/// A parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number in the unit of the attribute; 0 or 1 for a switch.
    Number(u64),
    /// A set of pages.
    Pages(Selection),
    /// A pass of recompression.
    Recompress(RecompressRequest),
    /// The algorithm of the codec of a priority.
    Algorithm {
        /// The priority, 0 to 3.
        priority: usize,
        /// The name in the table of codecs.
        name: String,
    },
    /// Parameters of a codec.
    Parameters(Parameters),
    /// A file or block device, by its absolute path.
    Path(PathBuf),
    /// No value: the attribute is an action.
    Trigger,
}

/// Parameters of a codec: those to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The codec, by its priority.
    pub priority: Option<i32>,
    /// The codec, by its name.
    pub algorithm: Option<String>,
    /// The level.
    pub level: Option<i32>,
    /// The path of the dictionary.
    pub dictionary: Option<PathBuf>,
    /// The window bits of deflate.
    pub window_bits: Option<i32>,
}

impl Value {
    /// The number, without its unit; 0 for other values.
    pub fn number(&self) -> u64 {
        match self {
            Value::Number(n) => *n,
            _ => 0,
        }
    }

    /// The percentage, which is at most 100.
    pub fn percent(&self) -> u32 {
        self.number() as u32
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.number() != 0
    }
}

/// Parses a value. The error says which values are accepted.
pub type ParseFn = fn(&str, Syntax) -> Result<Value, Invalid>;

/// Parses a size such as `2G`.
pub fn bytes(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match syntax {
        Syntax::Command => size::parse(text).map(Value::Number).map_err(|e| e.to_string().into()),
        Syntax::Kernel => {
            syntax::memparse(text).map(Value::Number).ok_or_else(|| "expected a size such as 4G".into())
        }
    }
}

/// Parses a size per second, such as `50M` or `50M/s`.
pub fn rate(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    bytes(text.strip_suffix("/s").unwrap_or(text), syntax)
}

/// Parses a number of decimal digits.
pub fn number(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match syntax {
        Syntax::Command => digits(text).map(Value::Number),
        // zram returns EINVAL for numbers that are too large, too.
        Syntax::Kernel => syntax::kstrtou(text, 10, u64::MAX).map(Value::Number).map_err(|e| e.why.into()),
    }
}

fn digits(text: &str) -> Result<u64, Invalid> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parsed = if plain { text.parse().ok() } else { None };
    parsed.ok_or_else(|| "expected a number".into())
}

/// Parses a percentage; a `%` may follow.
pub fn percent(text: &str, _: Syntax) -> Result<Value, Invalid> {
    let text = text.trim_end();
    match digits(text.strip_suffix('%').unwrap_or(text).trim_end()) {
        Ok(n @ 0..=100) => Ok(Value::Number(n)),
        _ => Err("expected a number from 0 to 100".into()),
    }
}

/// Parses a duration such as `90` or `10m`.
pub fn seconds(text: &str, _: Syntax) -> Result<Value, Invalid> {
    duration::parse_s(text.trim_end()).map(Value::Number).map_err(|e| e.to_string().into())
}

/// Accepts `0` only.
pub fn zero(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match number(text, syntax) {
        Ok(Value::Number(0)) => Ok(Value::Trigger),
        _ => Err("the only valid value is 0".into()),
    }
}

/// Accepts `1` only; the kernel's syntax accepts anything.
pub fn one(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match (text, syntax) {
        ("1", _) | (_, Syntax::Kernel) => Ok(Value::Trigger),
        _ => Err("the only valid value is 1".into()),
    }
}

/// Parses a switch, in the words that the kernel accepts; on a command line, as whole words.
pub fn switch(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    match (text, syntax) {
        (_, Syntax::Kernel) => syntax::kstrtobool(text).map(|on| Value::Number(on.into())),
        ("1" | "y" | "yes" | "on" | "Y", _) => Ok(Value::Number(1)),
        ("0" | "n" | "no" | "off" | "N", _) => Ok(Value::Number(0)),
        _ => Err("expected 1 or 0, on or off".into()),
    }
}
