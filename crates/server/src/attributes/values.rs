//! The values of attributes, and parsing them.

use pagefold_page::{duration, size};
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::Selection;

/// A parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number of bytes.
    Bytes(u64),
    /// A number of something else: pages, requests.
    Number(u64),
    /// A percentage, 0 to 100.
    Percent(u32),
    /// A duration, seconds.
    Seconds(u64),
    /// On or off.
    Switch(bool),
    /// A set of pages.
    Pages(Selection),
    /// A pass of recompression.
    Recompress(RecompressRequest),
    /// No value: the attribute is an action.
    Trigger,
}

impl Value {
    /// The number, without its unit; 0 or 1 for a switch.
    pub fn number(&self) -> u64 {
        match self {
            Value::Bytes(n) | Value::Number(n) | Value::Seconds(n) => *n,
            Value::Percent(n) => u64::from(*n),
            Value::Switch(on) => u64::from(*on),
            Value::Pages(_) | Value::Recompress(_) | Value::Trigger => 0,
        }
    }

    /// The percentage; 0 for other values.
    pub fn percent(&self) -> u32 {
        match self {
            Value::Percent(n) => *n,
            _ => 0,
        }
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.number() != 0
    }
}

/// Parses a value. The error says which values are accepted.
pub type ParseFn = fn(&str) -> Result<Value, String>;

/// Parses a size such as `2G`.
pub fn bytes(text: &str) -> Result<Value, String> {
    size::parse(text).map(Value::Bytes).map_err(|e| e.to_string())
}

/// Parses a size per second, such as `50M` or `50M/s`.
pub fn rate(text: &str) -> Result<Value, String> {
    bytes(text.strip_suffix("/s").unwrap_or(text))
}

/// Parses a number of decimal digits.
pub fn number(text: &str) -> Result<Value, String> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parsed = if plain { text.parse().ok() } else { None };
    parsed.map(Value::Number).ok_or_else(|| "it takes a number".to_string())
}

/// Parses a percentage; a `%` may follow.
pub fn percent(text: &str) -> Result<Value, String> {
    match number(text.strip_suffix('%').unwrap_or(text).trim_end()) {
        Ok(Value::Number(n @ 0..=100)) => Ok(Value::Percent(n as u32)),
        _ => Err("it takes a number from 0 to 100".to_string()),
    }
}

/// Parses a duration such as `90` or `10m`.
pub fn seconds(text: &str) -> Result<Value, String> {
    duration::parse_s(text).map(Value::Seconds).map_err(|e| e.to_string())
}

/// Accepts `0` only.
pub fn zero(text: &str) -> Result<Value, String> {
    if text == "0" { Ok(Value::Trigger) } else { Err("it takes 0 only".to_string()) }
}

/// Accepts `1` only.
pub fn one(text: &str) -> Result<Value, String> {
    if text == "1" { Ok(Value::Trigger) } else { Err("it takes 1 only".to_string()) }
}

/// Parses a switch, in the words that the kernel accepts.
pub fn switch(text: &str) -> Result<Value, String> {
    match text {
        "1" | "y" | "yes" | "on" | "Y" => Ok(Value::Switch(true)),
        "0" | "n" | "no" | "off" | "N" => Ok(Value::Switch(false)),
        _ => Err("it takes 1 or 0, on or off".to_string()),
    }
}
