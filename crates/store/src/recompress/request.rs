//! Which pages a pass compresses again, and with which codec.
//!
//! The words are those of zram's `recompress` attribute: `type=idle`, `huge` or `huge_idle`; `threshold=BYTES`;
//! `max_pages=N`; `algo=NAME` or `priority=N`. An unknown word, which zram ignores, is an error here.

use crate::pages::{Codecs, FURTHER_CODECS_MAX, RAW_LEN_MIN};
use crate::slot::SlotSnapshot;
use crate::writeback::Which;
use std::str::FromStr;

/// The pages and the codec of a pass of recompression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecompressRequest {
    /// The pages to examine, by their property.
    pub which: Which,
    /// Only objects of at least this length are tried, and only a result that is shorter is kept, bytes; 0 is no
    /// threshold. A length from which on pages are stored raw is refused.
    pub threshold_bytes: Option<u16>,
    /// The most pages to try, whether or not they become smaller; the longest objects are tried first.
    pub pages_max: Option<u64>,
    /// The codec, by its name; it must be one of the store's further codecs.
    pub codec: Option<String>,
    /// The codec, by its priority, at least 1. Without name and priority it is 1.
    pub priority: Option<u8>,
    /// Threads that work on the pass, the caller's included; at least 1.
    pub threads: usize,
}

impl Default for RecompressRequest {
    /// All pages, with the codec of priority 1, in the caller's thread.
    fn default() -> Self {
        RecompressRequest {
            which: Which::All,
            threshold_bytes: None,
            pages_max: None,
            codec: None,
            priority: None,
            threads: 1,
        }
    }
}

/// A request for recompression that cannot be parsed, or does not fit the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecompressError {
    /// An unknown word.
    #[error(
        "'{word}' is not understood; use type=idle, type=huge, type=huge_idle, threshold=BYTES, max_pages=N, \
         algo=NAME or priority=1..{}",
        FURTHER_CODECS_MAX
    )]
    Unknown {
        /// The word.
        word: String,
    },
    /// A number that is too large for its key.
    #[error("the number in '{word}' is too large")]
    TooLarge {
        /// The word.
        word: String,
    },
    /// A threshold that no compressed page reaches.
    #[error(
        "a threshold of {bytes} bytes is too large: pages of {} bytes and more are stored raw",
        RAW_LEN_MIN
    )]
    Threshold {
        /// The threshold, bytes.
        bytes: u64,
    },
    /// The store has no codec of this priority.
    #[error("there is no codec of priority {priority} to compress again with; codecs are chosen at creation")]
    NoCodec {
        /// The priority.
        priority: u8,
    },
    /// The store has no further codec of this name.
    #[error("'{name}' is not one of the codecs to compress again with; codecs are chosen at creation")]
    NoSuchCodec {
        /// The name.
        name: String,
    },
    /// Memory for the codec of a worker could not be allocated.
    #[error("setting up recompression: {0}")]
    Codec(#[from] pagefold_codec::CodecError),
}

impl RecompressError {
    /// The error number that zram returns in this case.
    pub fn errno(&self) -> i32 {
        match self {
            RecompressError::Codec(_) => libc::ENOMEM,
            RecompressError::TooLarge { .. } => libc::ERANGE,
            _ => libc::EINVAL,
        }
    }
}

impl RecompressRequest {
    /// The threshold; 0 is none. Returns an error if no object can reach it and stay below it afterwards.
    pub(crate) fn threshold_bytes(&self) -> Result<Option<u16>, RecompressError> {
        self.threshold_bytes.map_or(Ok(None), |bytes| threshold(bytes.into()))
    }

    /// The priority of the codec among those of a store.
    pub(crate) fn target(&self, codecs: &Codecs) -> Result<u8, RecompressError> {
        if let Some(name) = &self.codec {
            let is_wanted = |p: u8| self.priority.is_none_or(|priority| priority == p);
            let found = codecs.further().find(|(p, of)| of.codec.name() == name && is_wanted(*p));
            let no_such_codec = || RecompressError::NoSuchCodec { name: name.clone() };
            return found.map(|(priority, _)| priority).ok_or_else(no_such_codec);
        }
        let priority = self.priority.unwrap_or(1);
        match priority != 0 && codecs.get(priority).is_some() {
            true => Ok(priority),
            false => Err(RecompressError::NoCodec { priority }),
        }
    }

    /// Whether a page is to be tried with the codec of `target`. `age_s` is the time since its last access.
    pub(crate) fn selects(&self, seen: &SlotSnapshot, target: u8, age_s: u64) -> bool {
        let is_open =
            seen.is_object() && !seen.is_tried(target) && (seen.is_raw() || seen.priority() < target);
        is_open
            && self.which.selects(seen, age_s, target)
            && self.threshold_bytes.is_none_or(|least| seen.object_len_bytes() >= usize::from(least))
    }
}

impl FromStr for RecompressRequest {
    type Err = RecompressError;

    fn from_str(text: &str) -> Result<Self, RecompressError> {
        let mut request = RecompressRequest::default();
        for word in text.split_whitespace() {
            let unknown = || RecompressError::Unknown { word: word.to_string() };
            let (key, value) = word.split_once('=').ok_or_else(unknown)?;
            match key {
                "type" => {
                    // Pages that the last codec has tried already are no type to recompress.
                    let which = Which::parse(value).filter(|which| *which != Which::Incompressible);
                    request.which = which.ok_or_else(unknown)?;
                }
                // zram takes 0 for none.
                "threshold" => request.threshold_bytes = threshold(number(word, value, u32::MAX.into())?)?,
                "max_pages" => request.pages_max = Some(number(word, value, u64::MAX)?),
                "algo" if !value.is_empty() => request.codec = Some(value.to_string()),
                "priority" => request.priority = Some(priority(word, value)?),
                _ => return Err(unknown()),
            }
        }
        Ok(request)
    }
}

fn threshold(bytes: u64) -> Result<Option<u16>, RecompressError> {
    match u16::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(least) if usize::from(least) < RAW_LEN_MIN => Ok(Some(least)),
        _ => Err(RecompressError::Threshold { bytes }),
    }
}

fn priority(word: &str, value: &str) -> Result<u8, RecompressError> {
    let unknown = || RecompressError::Unknown { word: word.to_string() };
    let found = match value.strip_prefix('-') {
        // No priority is negative, but the kernel says which numbers are too small.
        Some(digits) if !digits.starts_with('+') => number(word, digits, 1 << 31).map(|_| None),
        _ => number(word, value, i32::MAX as u64).map(|n| u8::try_from(n).ok()),
    };
    found?.filter(|n| (1..=FURTHER_CODECS_MAX).contains(&usize::from(*n))).ok_or_else(unknown)
}

/// The number `value` of `word`, as the kernel reads it: decimal, with a plus sign if wanted, and up to `max`.
fn number(word: &str, value: &str, max: u64) -> Result<u64, RecompressError> {
    let digits = value.strip_prefix('+').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(RecompressError::Unknown { word: word.to_string() });
    }
    let number = digits.parse().ok().filter(|number| *number <= max);
    number.ok_or_else(|| RecompressError::TooLarge { word: word.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zrams_words_are_understood_in_any_order() {
        let request: RecompressRequest =
            "max_pages=7 type=huge_idle priority=2 threshold=3000\n".parse().unwrap();
        assert_eq!(request.which, Which::HugeIdle);
        assert_eq!(
            (request.pages_max, request.priority, request.threshold_bytes),
            (Some(7), Some(2), Some(3000))
        );
        assert_eq!("".parse::<RecompressRequest>().unwrap(), RecompressRequest::default());
        assert_eq!(
            "algo=zstd threshold=0".parse::<RecompressRequest>().unwrap().codec.as_deref(),
            Some("zstd")
        );
        // Of 0 pages the kernel tries none.
        assert_eq!("max_pages=+0".parse::<RecompressRequest>().unwrap().pages_max, Some(0));
    }

    #[test]
    fn wrong_words_are_named() {
        for bad in [
            "idle",
            "type=",
            "type=all",
            "priority=0",
            "priority=4",
            "priority=-1",
            "priority=-+1",
            "algo=",
            "max_pages=-1",
            "size=3",
        ] {
            let error = bad.parse::<RecompressRequest>().unwrap_err();
            assert!(matches!(&error, RecompressError::Unknown { word } if word == bad), "{bad}: {error}");
        }
        for bad in [
            "threshold=4294967296",
            "max_pages=18446744073709551616",
            "priority=2147483648",
            "priority=-2147483649",
        ] {
            let error = bad.parse::<RecompressRequest>().unwrap_err();
            assert!(matches!(&error, RecompressError::TooLarge { word } if word == bad), "{bad}: {error}");
            assert_eq!(error.errno(), libc::ERANGE);
        }
        for bad in ["threshold=3968", "threshold=99999"] {
            assert!(
                matches!(bad.parse::<RecompressRequest>(), Err(RecompressError::Threshold { .. })),
                "{bad}"
            );
        }
    }
}
