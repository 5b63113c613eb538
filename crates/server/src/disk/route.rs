//! The codecs of a saved disk: which of its pages a disk stores as they are, and how the others are decompressed.

use super::{Setup, codec, save};
use pagefold_codec::{Codec, CodecError, PerCpuStream};
use pagefold_control::config::CodecConfig;
use pagefold_saved::CodecRecord;

/// The way in which pages of a codec of the saved disk are stored.
pub enum Route {
    /// As they are, as pages of this priority.
    AsTheyAre(u8),
    /// Decompressed by this stream.
    Decompressed(Box<PerCpuStream>),
}

/// The ways for the codecs of a saved disk into one with the settings `setup`.
pub fn routes(setup: &Setup, saved: &[CodecRecord]) -> Result<Vec<Route>, CodecError> {
    let own = save::codecs(setup);
    let route = |record: &CodecRecord| match own.iter().position(|own| reads(own, record)) {
        Some(priority) => Ok(Route::AsTheyAre(priority as u8)),
        None => {
            let codec = Codec::new(&codec::spec(&codec::applicable(&config_of(record))))?;
            Ok(Route::Decompressed(Box::new(PerCpuStream::new(&codec)?)))
        }
    };
    // No page has a codec without a name, unless the file is forged; then it is one of the disk's first codec.
    let named = |record: &CodecRecord| match record.name.is_empty() {
        true => Ok(Route::AsTheyAre(0)),
        false => route(record),
    };
    saved.iter().map(named).collect()
}

/// The configuration of a codec of a saved disk.
pub fn config_of(record: &CodecRecord) -> CodecConfig {
    CodecConfig {
        name: record.name.clone(),
        level: record.level,
        dictionary: record.dictionary.clone(),
        window_bits: record.window_bits,
    }
}

/// Whether a codec of the disk reads bytes that the codec of a saved disk has made: the level does not count.
fn reads(own: &CodecRecord, saved: &CodecRecord) -> bool {
    !saved.name.is_empty()
        && own.name == saved.name
        && own.dictionary == saved.dictionary
        && own.window_bits == saved.window_bits
}
