//! Values of attributes: what they are when they were understood, and how they are understood.

use pagefold_page::{duration, size};
use pagefold_store::parking::Selection;

/// A value that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number of bytes.
    Bytes(u64),
    /// A number of something else: pages, requests.
    Number(u64),
    /// A share, 0 to 100.
    Percent(u32),
    /// A span of time, seconds.
    Seconds(u64),
    /// On or off.
    Switch(bool),
    /// A set of pages.
    Pages(Selection),
    /// Nothing to say beyond "do it".
    Go,
}

impl Value {
    /// The number in it, whatever it counts; 0 or 1 for a switch.
    pub fn number(&self) -> u64 {
        match self {
            Value::Bytes(n) | Value::Number(n) | Value::Seconds(n) => *n,
            Value::Percent(n) => u64::from(*n),
            Value::Switch(on) => u64::from(*on),
            Value::Pages(_) | Value::Go => 0,
        }
    }

    /// The share in it.
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

/// Understands a value, or says what would be one.
pub type Parse = fn(&str) -> Result<Value, String>;

/// A size such as `2G`.
pub fn bytes(text: &str) -> Result<Value, String> {
    size::parse(text).map(Value::Bytes).map_err(|e| e.to_string())
}

/// A size each second, such as `50M` or `50M/s`.
pub fn rate(text: &str) -> Result<Value, String> {
    bytes(text.strip_suffix("/s").unwrap_or(text))
}

/// A plain number.
pub fn number(text: &str) -> Result<Value, String> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parsed = if plain { text.parse().ok() } else { None };
    parsed.map(Value::Number).ok_or_else(|| "it takes a number".to_string())
}

/// A share of a hundred; a `%` may follow.
pub fn percent(text: &str) -> Result<Value, String> {
    match number(text.strip_suffix('%').unwrap_or(text).trim_end()) {
        Ok(Value::Number(n @ 0..=100)) => Ok(Value::Percent(n as u32)),
        _ => Err("it takes a number from 0 to 100".to_string()),
    }
}

/// A span of time such as `90` or `10m`.
pub fn seconds(text: &str) -> Result<Value, String> {
    duration::parse_s(text).map(Value::Seconds).map_err(|e| e.to_string())
}

/// `0` and nothing else.
pub fn zero(text: &str) -> Result<Value, String> {
    if text == "0" { Ok(Value::Go) } else { Err("it takes 0 only".to_string()) }
}

/// `1` and nothing else.
pub fn one(text: &str) -> Result<Value, String> {
    if text == "1" { Ok(Value::Go) } else { Err("it takes 1 only".to_string()) }
}

/// On or off, in the words that the kernel takes.
pub fn switch(text: &str) -> Result<Value, String> {
    match text {
        "1" | "y" | "yes" | "on" | "Y" => Ok(Value::Switch(true)),
        "0" | "n" | "no" | "off" | "N" => Ok(Value::Switch(false)),
        _ => Err("it takes 1 or 0, on or off".to_string()),
    }
}
